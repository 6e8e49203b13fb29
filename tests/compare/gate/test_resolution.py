"""What few runs decide: precise parts at their limits, noisy parts at what the runs show."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.compare.gate.gate_sides import side
from tracelens.compare import plausible
from tracelens.compare.gate import (
    Cause,
    RuleOutcome,
    Samples,
    Side,
    Verdict,
    default_rules,
    gate,
    headline,
    of_metrics,
    read_rule,
    step_noise,
)
from tracelens.compare.thresholds import (
    BYTES_NOISE,
    COUNTED_NOISE,
    GPU_PART_NOISE,
    GPU_WORK_NOISE,
    PACE_NOISE,
    TRACED_NOISE,
    WAITING_NOISE,
)

GPU_MS = np.array([18.64, 18.63, 18.65])
STEP_MS = np.array([23.0, 23.6, 23.3])


def run(name: str = "run", *, gpu: float = 1.0, step: float = 1.0, **metrics: object) -> Samples:
    """Three steps of a program whose GPU work repeats and whose host does not."""
    known = {
        "computation.time": 1e6 * gpu * GPU_MS,
        "kernel.count": [352] * 3,
        "step.time": 1e6 * step * STEP_MS,
        "idle.fraction": 1 - gpu * GPU_MS / (step * STEP_MS),
    }
    return side(name, metrics={**known, **metrics})


def outcomes(verdict: Verdict) -> dict[str, RuleOutcome]:
    return {outcome.metric: outcome for outcome in verdict.outcomes}


@pytest.mark.parametrize(
    ("metric", "unit", "noise"),
    [
        ("computation.time", "ns", GPU_WORK_NOISE),
        ("rank[3].computation.time", "ns", GPU_WORK_NOISE),
        ("moe.experts.time", "ns", GPU_WORK_NOISE),
        ("op[aten::mm].time", "ns", GPU_PART_NOISE),
        ("kernel[*gemm*].time", "ns", GPU_PART_NOISE),
        ("category[communication].time", "ns", WAITING_NOISE),
        ("kernel[ncclDevKernel_AllReduce_Sum_bf16_RING_LL].time", "ns", WAITING_NOISE),
        ("exposed_comm.time", "ns", WAITING_NOISE),
        ("moe.dispatch.time", "ns", WAITING_NOISE),
        ("idle.time", "ns", WAITING_NOISE),
        ("step.time", "ns", TRACED_NOISE),
        ("idle.fraction", "fraction", TRACED_NOISE),
        ("step.pace", "ns", PACE_NOISE),
        ("rank[0].step.pace", "ns", PACE_NOISE),
        ("kernel.count", "count", COUNTED_NOISE),
        ("memory.peak", "bytes", BYTES_NOISE),
    ],
)
def test_each_metric_has_the_noise_of_its_class(metric: str, unit: str, noise: object) -> None:
    assert plausible(metric, unit) is noise


@pytest.mark.parametrize(
    ("factor", "status"), [(1.0, "pass"), (1.002, "pass"), (1.012, "fail"), (1.02, "fail")]
)
def test_one_run_a_side_decides_on_gpu_work(factor: float, status: str) -> None:
    assert outcomes(gate(run(), run(gpu=factor)))["computation.time"].status == status


@pytest.mark.parametrize(
    ("factor", "status"), [(0.9, "pass"), (1.0, "pass"), (1.02, "pass"), (1.12, "inconclusive")]
)
def test_a_default_rule_is_decided_at_what_the_runs_show(factor: float, status: str) -> None:
    outcome = outcomes(gate(run(), run(step=factor)))["step.time"]
    assert outcome.status == status
    assert (outcome.shown > outcome.rule.limit) == (factor in (1.0, 1.02))
    (own,) = gate(run(), run(step=factor), [read_rule("step.time<=1.01")]).outcomes
    assert own.status == ("pass" if factor == 0.9 else "inconclusive")
    assert own.shown == own.rule.limit


def test_a_change_that_would_show_does_not_pass() -> None:
    shown = outcomes(gate(run(), run()))["step.time"].shown
    assert 1.05 < shown < 1.2
    assert outcomes(gate(run(), run(step=shown)))["step.time"].status != "pass"


def test_more_runs_show_less() -> None:
    def shown(runs: int) -> float:
        bases, candidates = ([run(step=1 + 0.01 * (n % 2)) for n in range(runs)] for _ in range(2))
        return outcomes(gate(bases, candidates))["step.time"].shown

    assert shown(1) > shown(2) > shown(4) > shown(20) >= 1.01


@pytest.mark.parametrize(
    "rule", ["step.time<=1.03", "step.time<=+1ms", "step<=24ms", "rank[0].step.time<=1.03"]
)
@pytest.mark.parametrize(("factor", "decides"), [(1.25, True), (1.51, True), (3.0, True), (1.12, False)])
def test_a_step_20_percent_longer_is_never_inconclusive(rule: str, factor: float, decides: bool) -> None:
    (outcome,) = gate(run(), run(step=factor), [read_rule(rule)]).outcomes
    assert outcome.status == ("fail" if decides else "inconclusive")


def test_steps_that_vary_by_as_much_decide_nothing() -> None:
    rule = [read_rule("step.time<=1.03")]
    varying = run(**{"step.time": [20e6, 30e6, 22e6]})
    assert gate(varying, run(step=1.3), rule).verdict == "inconclusive"
    stalled = run(**{"step.time": [23.0e6, 80e6, 23.3e6]})
    assert gate(run(), stalled, rule).verdict == "inconclusive"
    # Beside one step each, nothing says what steps vary by.
    one, other = (side(metrics={"step.time": [ns]}) for ns in (23e6, 30e6))
    assert gate(one, other, rule).verdict == "inconclusive"


def test_a_step_that_mostly_waits_is_not_decided_by_a_fifth() -> None:
    """Runs of such a program lie 0.6 apart, though the steps of each hardly differ."""
    base = run(gpu=0.1)
    assert outcomes(gate(base, run(gpu=0.1, step=1.4)))["step.time"].status == "inconclusive"
    assert outcomes(gate(base, run(gpu=0.1, step=1.8)))["step.time"].status == "fail"
    # Where the base's own steps lie as far apart, they are the noise.
    varying = run(**{"step.time": [20e6, 30e6, 22e6]})
    assert outcomes(gate(varying, run(step=1.3)))["step.time"].status == "pass"


@pytest.mark.parametrize(("factor", "status"), [(1.006, "pass"), (1.04, "inconclusive"), (1.08, "fail")])
def test_kernels_that_all_slow_down_alike_are_those_of_another_clock(factor: float, status: str) -> None:
    def at_clock(factor: float) -> Samples:
        classes = {
            f"category[{name}].time": [factor * 5e6] * 3 for name in ("gemm", "softmax", "copy", "other")
        }
        return run(gpu=factor, **classes)

    assert outcomes(gate(at_clock(1.0), at_clock(factor)))["computation.time"].status == status
    # One class that grows is the program's.
    grown = {"category[gemm].time": [(1 + 4 * (factor - 1)) * 5e6] * 3}
    kept = {f"category[{name}].time": [5e6] * 3 for name in ("softmax", "copy", "other")}
    outcome = outcomes(gate(at_clock(1.0), run(gpu=factor, **grown, **kept)))["computation.time"]
    assert outcome.status == ("fail" if factor > 1.01 else "inconclusive")


def test_a_limit_above_a_fifth_means_itself() -> None:
    verdict = gate(run(), run(step=1.3), [read_rule("step.time<=1.28")])
    assert verdict.verdict == "inconclusive"


@pytest.mark.parametrize("factor", [1.08, 1.12])
def test_so_many_runs_decide(factor: float) -> None:
    rule = [read_rule("step.time<=1.01")]
    (outcome,) = gate(run(), run(step=factor), rule).outcomes
    assert (outcome.status, 1 < outcome.runs_needed <= 20) == ("inconclusive", True)
    bases, candidates = (
        [run(step=scale * (1 + 0.01 * offset)) for offset in np.linspace(-1, 1, outcome.runs_needed)]
        for scale in (1.0, factor)
    )
    assert gate(bases, candidates, rule).verdict == "fail"


def test_a_long_baseline_needs_more_runs_of_the_candidate_only() -> None:
    bases = [run(step=1 + 0.04 * offset) for offset in np.linspace(-1, 1, 20)]
    (outcome,) = gate(bases, run(step=1.06), [read_rule("step.time<=1.01")]).outcomes
    assert outcome.status == "inconclusive"
    assert 1 < outcome.runs_needed < 10


def test_no_number_of_runs_decides_at_the_limit_itself() -> None:
    (outcome,) = gate(run(), run(step=1.01), [read_rule("step.time<=1.01")]).outcomes
    assert (outcome.status, outcome.runs_needed) == ("inconclusive", 0)


def test_the_verdict_names_its_parts() -> None:
    calls = {"op[aten::mm].time": [4e6] * 3, "op[aten::mm].count": [10] * 3}
    more = {"op[aten::mm].time": [5.3e6] * 3, "op[aten::mm].count": [18] * 3, "kernel.count": [360] * 3}
    base, candidate = run(**calls), run(gpu=1.07, step=1.15, **more)
    verdict = gate(base, candidate).because(of_metrics(Side.of(base), Side.of(candidate)))
    text = headline(verdict)
    assert "+1.305 ms of GPU work per step (8 more aten::mm), +8 kernels per step" in text
    noisy = headline(gate(run(), run(step=1.12)))
    assert "GPU work and kernels unchanged; step time: " in noisy
    assert "runs a side would decide" in noisy
    assert "would show: step time from +" in headline(gate(run(), run()))


def test_what_changed_within_its_limits_is_not_unchanged() -> None:
    """Fewer kernels, more within 1%, and faster ones: the step alone is undecided."""
    more = headline(gate(run(), run(step=1.12, **{"kernel.count": [355] * 3})))
    assert "; GPU work unchanged; +3 kernels per step allowed; step time: " in more
    same_idle = {"idle.fraction": 1 - GPU_MS / STEP_MS}
    less = headline(gate(run(), run(gpu=0.8, step=1.12, **same_idle, **{"kernel.count": [300] * 3})))
    assert re.search(r"; -[\d.]+ ms of GPU work per step and -52 kernels per step allowed; step time: ", less)


def test_gpu_work_is_not_said_to_be_in_what_waits() -> None:
    verdict = gate(run(), run(gpu=1.07)).because([Cause("waits", 0, 5e6, "c10d::allreduce_", 1)])
    assert "of GPU work per step, " in f"{headline(verdict)}, "
    assert "allreduce" not in headline(verdict)


@pytest.mark.parametrize("factor", [0.83, 0.9, 1.0, 1.03, 1.15, 1.3, 2.0])
def test_diff_and_gate_say_the_same_of_a_step(factor: float) -> None:
    steps = 1e6 * STEP_MS
    words = {"pass": "within", "fail": "beyond", "inconclusive": "unclear"}
    pair = (run(), run(step=factor)) if factor >= 1 else (run(step=factor), run())
    waiting = 1 - float(GPU_MS.mean() / STEP_MS.mean()) / min(factor, 1.0)
    found = step_noise(steps, factor * steps, waiting)
    assert found == words[outcomes(gate(*pair))["step.time"].status]
    assert found == step_noise(factor * steps, steps, waiting)


VALUES = st.one_of(st.just(0.0), st.floats(1e-3, 1e9), st.integers(0, 5).map(float))
RUNS = st.lists(st.lists(VALUES, min_size=1, max_size=4), min_size=1, max_size=3)


@given(RUNS, RUNS, st.sampled_from([str(rule) for rule in default_rules()]), st.booleans())
def test_any_values_give_a_verdict(
    base: list[list[float]], candidate: list[list[float]], rule: str, own: bool
) -> None:
    metric = read_rule(rule).metric
    scale = 1e-9 if metric.endswith("fraction") else 1.0
    sides = [
        [
            side(metrics={metric: scale * np.array(steps)}, parts=tuple(map(str, range(len(steps)))))
            for steps in runs
        ]
        for runs in (base, candidate)
    ]
    verdict = gate(sides[0], sides[1], [read_rule(rule)] if own else ())
    for outcome in verdict.outcomes:
        assert not math.isnan(outcome.shown)
        assert outcome.shown >= outcome.rule.limit
        assert 0 <= outcome.runs_needed <= 20
    assert headline(verdict)

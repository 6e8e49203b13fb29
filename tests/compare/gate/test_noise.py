"""Noise of a difference: what few runs tell, and how often that is wrong."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.gate_power import NOISE, shares
from tests.compare.gate.recorded import SAME, SLOWER_2, SLOWER_8
from tests.effort import effort
from tracelens.compare import Mixture, PooledVariance, noise, plausible
from tracelens.compare.gate import Samples, gate, read_rule
from tracelens.table import t_quantile

PACE, TRACED = plausible("step.pace", "ns"), plausible("step.time", "ns")
COUNTED = plausible("kernel.count", "count")
ONE = [np.array([1.0])]


def test_the_quantile_of_one_normal_distribution() -> None:
    normal = Mixture(np.array([2.0]), np.array([1.0]))
    assert normal.half_width(0.025) == pytest.approx(2 * 1.959964, rel=1e-5)


def test_many_runs_tell_the_noise_as_students_t_does() -> None:
    rng = np.random.default_rng(1)
    base, candidate = ([np.array([1 + rng.normal(0, 0.004)]) for _ in range(10)] for _ in range(2))
    spread = PooledVariance.of([np.concatenate(base), np.concatenate(candidate)])
    student = t_quantile(0.01, 18) * np.sqrt(spread.variance * 2 / 10)
    assert noise(base, candidate, PACE).half_width(0.01) == pytest.approx(student, rel=0.1)


def test_without_any_knowledge_the_interval_is_the_widest_plausible_noise() -> None:
    assert 0.01 < noise(ONE, ONE, PACE).half_width(0.01) < 0.03
    assert 0.1 < noise(ONE, ONE, TRACED).half_width(0.01) < 0.5
    assert noise(ONE, ONE, COUNTED).half_width(0.01) < noise(ONE, ONE, TRACED).half_width(0.01)


def test_a_history_tells_the_noise_between_runs() -> None:
    quiet, loud = PooledVariance(0.0005**2, 20), PooledVariance(0.03**2, 20)
    widths = [noise(ONE, ONE, PACE, history).half_width(0.01) for history in (quiet, PooledVariance(), loud)]
    assert widths == sorted(widths)
    assert widths[2] == pytest.approx(t_quantile(0.01, 20) * 0.03 * np.sqrt(2), rel=0.1)


def test_what_varies_inside_a_run_may_vary_between_runs() -> None:
    quiet, loud = ([np.array([1 - spread, 1 + spread])] for spread in (0.0005, 0.05))
    assert noise(loud, loud, PACE).half_width(0.01) > 10 * noise(quiet, quiet, PACE).half_width(0.01)


@pytest.mark.parametrize("name", NOISE)
@pytest.mark.parametrize("runs", [(1, 1), (2, 2), (3, 3), (6, 1)])
def test_false_alarms_are_rare(name: str, runs: tuple[int, int]) -> None:
    trials = effort(150, 300)
    # 1% and what so few trials scatter.
    assert shares(NOISE[name], runs, 0.0, trials)["fail"] <= 0.02 * trials


@pytest.mark.parametrize("name", ["pace, 0.1%", "pace, 0.2%"])
def test_power_of_the_pace(name: str) -> None:
    trials = effort(100, 200)
    assert shares(NOISE[name], (1, 1), 0.08, trials)["fail"] == trials
    assert shares(NOISE[name], (3, 3), 0.02, trials)["fail"] >= (0.9 if "0.1" in name else 0.5) * trials
    assert shares(NOISE[name], (1, 1), 0.02, trials)["pass"] <= 0.1 * trials
    assert shares(NOISE[name], (3, 3), 0.0, trials)["pass"] >= 0.9 * trials


def recorded(*runs: tuple[float, float]) -> list[Samples]:
    return [
        Samples(f"run {ms[0]}", (0,), ("1",), {"step.pace": 1e6 * np.array([ms])}, {"step.pace": "ns"},
                parts=("before", "after"))
        for ms in runs
    ]  # fmt: skip


def test_a_slowdown_inside_the_noise_does_not_pass() -> None:
    rule = [read_rule("step.pace<=1.01")]
    verdict = gate(recorded(*SAME), recorded(*SLOWER_8), rule)
    assert verdict.verdict == "inconclusive"
    assert gate(recorded(*SAME), recorded(*SLOWER_2), rule).verdict != "fail"


def test_parts_that_one_side_lacks_are_left_out() -> None:
    before = [run.with_parts(("before",)) for run in recorded(SAME[0])]
    (outcome,) = gate(before, recorded(SAME[0]), [read_rule("step.pace<=1.01")]).outcomes
    assert outcome.base == outcome.candidate == pytest.approx(1e6 * SAME[0][0])

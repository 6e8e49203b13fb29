"""Rules held against two runs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import tracelens
from tests.builders import draw
from tests.compare.gate.gate_sides import side
from tests.effort import effort
from tracelens.compare.gate import Samples, Verdict, from_result, gate, read_rule
from tracelens.compare.gate.runs import RecordingDoubt, from_saved
from tracelens.errors import TracelensError
from tracelens.trace import make_run


def judged(base: Samples, candidate: Samples, *rules: str, **options: float) -> Verdict:
    return gate(base, candidate, [read_rule(rule) for rule in rules], **options)


def statuses(verdict: Verdict) -> list[str]:
    return [outcome.status for outcome in verdict.outcomes]


QUIET = side(
    "base",
    metrics={
        "step.time": [100e6, 101e6, 99e6, 100e6],
        "kernel.count": [7] * 4,
        "idle.fraction": [0.1] * 4,
        "moe.blocking_calls": [0] * 4,
    },
)


@pytest.mark.parametrize(
    ("factor", "rule", "status"),
    [
        (1.0, "step.time<=1.0", "inconclusive"),
        (1.0, "step.time<=1.1", "pass"),
        (1.4, "step.time<=1.03", "fail"),
        (1.1, "step.time<=1.03", "inconclusive"),
        (1.02, "step.time<=1.01", "inconclusive"),
        (1.4, "step.time<=+2ms", "fail"),
        (1.1, "step.time<=+20ms", "pass"),
        (1.4, "step.time<=105ms", "fail"),
        (1.1, "step.time<=111ms", "inconclusive"),
        (0.94, "step.time<=-5ms", "inconclusive"),
        (0.8, "step.time<=-5ms", "pass"),
        (1.4, "step.time<=-5ms", "fail"),
        (0.7, "step.time>=1.0", "fail"),
        (1.1, "step.time>=1.0", "pass"),
        (1.4, "step<=1.03", "fail"),
    ],
)
def test_a_rule_fails_when_the_whole_interval_is_beyond(factor: float, rule: str, status: str) -> None:
    scaled = {"step.time": factor * QUIET.values["step.time"]}
    candidate = replace(QUIET, name="cand", values={**QUIET.values, **scaled})
    assert statuses(judged(QUIET, candidate, rule)) == [status]


@pytest.mark.parametrize(
    ("value", "rule", "status"),
    [(7, "kernel.count<=1.0", "pass"), (8, "kernel.count<=1.0", "fail"), (8, "kernel.count<=+1", "pass"),
     (8, "kernel.count<=7 abs", "fail"), (6, "kernel.count>=1.0", "fail")],
)  # fmt: skip
def test_what_does_not_vary_is_compared_exactly(value: int, rule: str, status: str) -> None:
    (outcome,) = judged(QUIET, side(metrics={"kernel.count": [value] * 3}), rule).outcomes
    assert outcome.status == status
    assert outcome.interval.low == outcome.interval.high


def test_one_step_fails_beyond_the_widest_plausible_noise_only() -> None:
    single = side("one", metrics={"step.time": [104e6]})
    verdict = judged(single, side("other", metrics={"step.time": [108e6]}), "step.time<=1.03")
    (outcome,) = verdict.outcomes
    assert (verdict.verdict, outcome.status, outcome.source) == ("inconclusive", "inconclusive", "prior")
    assert not outcome.interval.known
    assert statuses(judged(single, side(metrics={"step.time": [230e6]}), "step.time<=1.03")) == ["fail"]
    assert judged(single, QUIET, "step.time<=1.03").outcomes[0].source == "within a run"


@pytest.mark.parametrize(
    "rule", ["moe.blocking_calls<=1.0", "moe.blocking_calls<=0", "moe.blocking_calls<=+0"]
)
def test_more_than_nothing_is_too_much(rule: str) -> None:
    candidate = side(metrics={"moe.blocking_calls": [4, 4, 4]})
    assert statuses(judged(QUIET, QUIET, rule)) == ["pass"]
    (outcome,) = judged(QUIET, candidate, rule).outcomes
    assert outcome.status == "fail"
    assert any("0 in the base" in note for note in outcome.notes) == (rule.endswith("1.0"))


def test_an_op_that_one_side_lacks_took_no_time_there() -> None:
    base = side(metrics={"step.time": [5, 5], "op[a].time": [3, 3]})
    candidate = side(metrics={"step.time": [5, 5], "op[b].time": [3, 3]})
    verdict = judged(base, candidate, "op[a]<=0.5", "op[b].time<=1.0")
    assert [
        (outcome.metric, outcome.base, outcome.candidate, outcome.status) for outcome in verdict.outcomes
    ] == [
        ("op[a].time", 3, 0, "pass"),
        ("op[b].time", 0, 3, "fail"),
    ]


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (
            "stp.time<=1",
            "rule 'stp.time<=1': neither run has the metric 'stp.time'; did you mean 'step.time'?",
        ),
        (
            "op[aten::nn].time<=1",
            "neither run has the op 'op[aten::nn].time'; did you mean 'op[aten::mm].time'?",
        ),
        ("zzz<=1", "the table steps.metrics lists all metrics"),
        ("memory.peak<=1", "cand has no 'memory.peak': record with profile_memory=True"),
        ("comm.bytes<=1", "base has no 'comm.bytes': record it in both runs"),
        ("step.time<=+2", "step.time is measured in ns, the limit in no unit; write it with ns"),
    ],
)
def test_what_cannot_be_asked(rule: str, said: str) -> None:
    base = side("base", metrics={"step.time": [5, 5], "memory.peak": [5, 5], "op[aten::mm].time": [1, 1]})
    lacking = (("rank 0: memory.peak", "record with profile_memory=True"),)
    candidate = side("cand", metrics={"step.time": [5, 5], "comm.bytes": [5, 5]}, lacking=lacking)
    with pytest.raises(TracelensError) as caught:
        judged(base, candidate, rule)
    assert said in str(caught.value)


def test_default_rules_without_a_metric_are_left_out_with_the_reason() -> None:
    verdict = gate(QUIET, QUIET)
    assert [str(outcome.rule) for outcome in verdict.outcomes] == [
        "kernel.count<=1.01", "step.time<=1.01", "idle.fraction<=+0.01", "moe.blocking_calls<=+0.5",
    ]  # fmt: skip
    assert [skip.subject for skip in verdict.skips] == [
        "default rule computation.time<=1.003",
        "default rule comm.bytes<=1.01",
        "default rule step.pace<=1.01",
        "default rule exposed_comm.fraction<=+0.01",
        "default rule memory.peak<=1.02",
    ]


def test_the_ranks_of_a_step_are_one_sample() -> None:
    # The ranks share their noise: eight of them are not eight times as many steps.
    noise = np.array([1.0, 1.1, 0.9, 1.05])
    base = side(ranks=range(8), metrics={"step.time": [list(noise)] * 8})
    candidate = side(ranks=range(8), metrics={"step.time": [list(1.06 * noise)] * 8})
    (many,) = judged(base, candidate, "step.time<=1.0").outcomes
    (outcome,) = judged(base.only([0]), candidate.only([0]), "step.time<=1.0").outcomes
    assert many.interval == pytest.approx(outcome.interval)
    assert many.steps == (4, 4)


def test_ranks_that_only_one_run_has_are_left_out() -> None:
    base = side("base", ranks=(0, 1), metrics={"step.time": [[5, 5], [50, 50]]})
    candidate = side("cand", ranks=(0, 2), metrics={"step.time": [[5, 5], [5, 5]]})
    verdict = judged(base, candidate, "step.time<=1.0")
    assert statuses(verdict) == ["pass"]
    assert [skip.subject for skip in verdict.skips] == ["base: rank 1", "cand: rank 2"]
    apart = judged(base.only([0]), candidate.only([2]), "step.time<=1.0")
    assert "no common rank" in apart.skips[-1].reason


def test_runs_that_were_not_computed_alike() -> None:
    with pytest.raises(TracelensError, match=r"scope 'all'.*'linked'; use the same --scope for both"):
        judged(QUIET, replace(QUIET, scope="linked"), "step.time<=1")
    (skip,) = judged(QUIET, replace(QUIET, version="9"), "step.time<=1").skips
    assert "candidate by 9: metrics may be defined differently" in skip.reason


@pytest.mark.parametrize("confidence", [0.5, 1, 99, float("nan")])
def test_what_is_no_confidence(confidence: float) -> None:
    with pytest.raises(TracelensError, match=r"must be above 0\.5 and below 1"):
        gate(QUIET, QUIET, confidence=confidence)


def test_rules_share_the_doubt() -> None:
    varying = {f"op[{number}].time": [5, 6, 7] for number in range(4)}
    base = side(metrics={**varying, "kernel.count": [5, 5, 5]})
    verdict = judged(base, base, *(f"{name}<=1.0" for name in base.values), confidence=0.98)
    varying = [outcome.tail for outcome in verdict.outcomes if outcome.source != "none"]
    assert varying == pytest.approx([0.01, 0.01 / 3, 0.01 / 3, 0.01 / 3])  # the first rule gets half
    (alone,) = judged(base, base, "op[1]<=1.0", confidence=0.98).outcomes
    assert alone.tail == pytest.approx(0.02)


@settings(max_examples=effort(10, 1000))
@given(st.lists(st.lists(st.floats(0, 1e9), min_size=4, max_size=4), min_size=1, max_size=3))
def test_a_run_against_itself_never_fails(rows: list[list[float]]) -> None:
    run = side(metrics={f"m{number}.time": row for number, row in enumerate(rows)})
    rules = [f"{metric}{limit}" for metric in run.values for limit in ("<=1.0", ">=1.0", "<=+0", ">=+0")]
    assert "fail" not in statuses(judged(run, run, *rules))


DRAWING = """
    step 1      | ----------
    step 2      |           ----------
    step 3      |                     ----------
    op aten::mm |  --        --        --
    launch      |  a         b         c
    s7 gemm     |   aaa       bbbb      ccccc
"""


@pytest.mark.parametrize("factor", [2, 3, 10])
def test_slowing_all_down_by_a_factor_gives_that_ratio(factor: int) -> None:
    def samples(ns: int) -> Samples:
        return from_result(tracelens.analyze(make_run([draw(DRAWING, ns_per_char=ns)]), "steps"), "run", "1")

    normal, slow = samples(1000), samples(1000 * factor)
    for metric, unit in normal.units.items():
        if normal.each_step(metric).any():
            (outcome,) = judged(normal, slow, f"{metric}<=1.0").outcomes
            assert outcome.interval.estimate == pytest.approx(factor if unit == "ns" else 1)


DOUBTFUL = replace(
    QUIET, name="cand", doubts=(RecordingDoubt(0, "missing launches", "9 of 10 have no launch call"),)
)


def test_a_side_in_doubt_is_refused_for_what_the_doubt_affects() -> None:
    with pytest.raises(TracelensError, match=r"^cand: .*step\.time.*missing launches.*--trust-anyway"):
        judged(QUIET, DOUBTFUL, "step.time<=1.03")
    with pytest.raises(TracelensError, match=r"^cand: .*kernel\.count"):
        judged(DOUBTFUL, QUIET, "kernel.count<=1.03")
    assert statuses(judged(QUIET, DOUBTFUL, "idle.fraction<=+0.1", trust_anyway=True))


def test_a_doubt_about_other_metrics_or_ranks_does_not_refuse() -> None:
    metrics = {"comm.time": [1e6, 1e6], "step.time": [1e6, 1e6]}
    sound = side("base", metrics=metrics)
    doubts = (
        RecordingDoubt(0, "overlapping kernels", "3 kernels overlap"),
        RecordingDoubt(5, "missing work", "holes"),
    )
    doubtful = side("cand", metrics=metrics | {"launch.count": [3, 3]}, doubts=doubts)
    both = side("base", metrics=metrics | {"launch.count": [3, 3]})
    assert statuses(judged(both, doubtful.only([0]), "launch.count<=1.0")) == ["pass"]
    with pytest.raises(TracelensError, match="overlapping kernels"):
        judged(sound, doubtful.only([0]), "comm.time<=1.0")


def test_who_trusts_a_side_anyway_is_told_of_its_doubts() -> None:
    verdict = judged(QUIET, DOUBTFUL, "step.time<=1.2", trust_anyway=True)
    assert statuses(verdict) == ["pass"]
    assert [skip.subject for skip in verdict.skips] == ["cand: trusted anyway"]


def test_the_doubts_of_a_saved_report_count() -> None:
    trust = {"complete": False, "doubts": {"0": [{"doubt": "cut", "evidence": "no end"}], "x": [], "1": 3}}
    rows = [{"rank": 0, "step": "a", "metric": "step.time", "value": 5, "unit": "ns"}]
    document = {"results": {"steps": {"tables": {"metrics": rows}}}, "meta": {"trust": trust}}
    assert from_saved(document, "base").doubts == (RecordingDoubt(0, "cut", "no end"),)
    assert from_saved({**document, "meta": {}}, "base").doubts == ()
    assert from_saved({**document, "meta": {"trust": ["?"]}}, "base").doubts == ()


def test_a_doubtful_recording_is_refused_from_traces() -> None:
    lost = make_run([draw("""
        step 1                       | ----------
        step 2                       |           ----------
        op aten::mm                  | --        --
        launch                       | abcd      efgh
        s7 gemm                      |  abcd
        launch cudaDeviceSynchronize |                     --
    """)])  # fmt: skip
    with pytest.raises(TracelensError, match="missing kernels"):
        tracelens.gate(lost, lost, ["kernel.count<=1.0"])
    assert not tracelens.gate(lost, lost, ["kernel.count<=1.0"], trust_anyway=True).failed

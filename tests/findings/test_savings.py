"""Savings by replay: a finding saves what its scenario gives, and no time is counted twice."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from tests.builders import records
from tests.what_if.replays import projected, run_of
from tracelens import analyze
from tracelens.findings import Detection, Detector, Quantity
from tracelens.findings.findings import Replays, Saving, SizedFinding, ranked
from tracelens.table import Result, Skip
from tracelens.trace import union

MODULE = importlib.import_module("tracelens.findings.findings")
US = 1000

CHAIN = """
    step 1    | -----
    launch    |  abcd
    s7 opener |   aaaaaa
    s7 first  |         bbbbbbbb
    s7 second |                 cccc
    s7 third  |                     dd
"""
"""A step of 20 us of GPU work in a row, all launched while the first kernel runs."""


Wanted = tuple[str, tuple[int, int]]
"""A scenario, and the columns that the detection is about."""


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Findings of a drawing by detectors that always detect; those named symptom... are symptoms."""

    def analyzed(*texts: str, **wanted: Wanted) -> Result:
        monkeypatch.setattr(MODULE, "DETECTORS", {name: one(name, *item) for name, item in wanted.items()})
        return analyze(run_of(*texts), "findings")

    def one(name: str, scenario: str, columns: tuple[int, int]) -> Detector:
        start, end = (np.array([column * US], dtype=np.int64) for column in columns)
        outcome = Detection(
            (Quantity("so many", 1.0, "count"),), float((end - start)[0]), union(start, end), "seen", "high"
        )
        return Detector(
            name, name.title(), "a sign", (), lambda context: outcome,
            symptom=name.startswith("symptom"), scenario=scenario,
        )  # fmt: skip

    return analyzed


def savings(result: Result) -> list[tuple[Any, ...]]:
    """(detector, additional, saving in us, basis, explained by) of each finding."""
    return [
        (detector, additional / US, saving / US, basis, cause)
        for detector, additional, saving, basis, cause in records(
            result["findings"], "detector", "additional_ns", "saving_ns", "basis", "explained_by"
        )
    ]


@pytest.mark.parametrize(("columns", "rest"), [((9, 17), ""), ((9, 11), "2.00 µs")])
def test_a_saving_beyond_its_evidence_says_where_the_rest_lies(
    found: Any, columns: tuple[int, int], rest: str
) -> None:
    """Half of 8 us, of which the detection is about all, or about 2 us."""
    (row,) = found(CHAIN, half=("scale:first=0.5", columns))["findings"].itertuples()
    assert ("go with it" in row.evidence) == bool(rest)
    assert f"4.00 µs saved {rest} lie in this time, {rest} in gaps" in row.evidence or not rest


@pytest.mark.parametrize(("columns", "shown"), [((9, 17), True), ((9, 9), False)])
def test_what_is_wrong_is_told_once_as_a_finding_or_as_a_fact(
    found: Any, monkeypatch: pytest.MonkeyPatch, columns: tuple[int, int], shown: bool
) -> None:
    result = found(CHAIN, half=("scale:first=0.5", columns))
    (detector,) = MODULE.DETECTORS.values()
    outcome = detector.function(None)._replace(fact="something is odd")
    told = replace(detector, function=lambda context: outcome)
    monkeypatch.setattr(MODULE, "DETECTORS", {"half": told})
    result = analyze(run_of(CHAIN), "findings")
    facts = records(result["facts"], "fact", "worst_rank", "detector")
    assert (("something is odd", 0, "half") in facts) != shown
    assert bool(len(result["findings"])) == shown


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (CHAIN, "one step is recorded"),
        (CHAIN.replace("step 1    | -----", ""), "no steps are marked"),
        (CHAIN, "no shapes are recorded"),
    ],
)
def test_what_the_recording_cannot_show_is_told_with_what_would(text: str, words: str) -> None:
    facts = analyze(run_of(text), "findings")["facts"]
    assert any(words in fact for fact in facts[facts["worst_rank"].isna()]["fact"])


def test_the_saving_is_what_the_replay_gives(found: Any) -> None:
    result = found(CHAIN, half=("scale:first=0.5", (9, 17)))
    assert savings(result) == [("half", 4, 4, "replayed", "")]
    (row,) = result["findings"].itertuples()
    step = result.meta["base_ns"] / US
    assert row.scenario == "scale:first=0.5"
    assert step - projected(run_of(CHAIN), "scale:first=0.5") == 4
    assert row.fraction_of_step == pytest.approx(4 / step)
    assert (row.low_ns, row.high_ns) == (4 * US, 4 * US)
    assert (row.confidence, row.upper_bound) == ("high", "")


def test_two_findings_share_time(found: Any) -> None:
    """Both are rid of the second kernel: 12 us by the one, then the third kernel's 2 us are left."""
    result = found(CHAIN, narrow=("scale:[st]*=0", (17, 23)), wide=("scale:[fs]*=0", (9, 21)))
    assert savings(result) == [("wide", 12, 12, "replayed", ""), ("narrow", 2, 6, "replayed", "")]


def test_a_finding_that_adds_nothing_after_another(found: Any) -> None:
    result = found(CHAIN, within=("scale:second=0", (17, 21)), wide=("scale:[fs]*=0", (9, 21)))
    assert savings(result) == [("wide", 12, 12, "replayed", ""), ("within", 0, 4, "replayed", "")]


def test_a_symptom_stands_below_its_cause_although_it_saves_more(found: Any) -> None:
    """The cause has 8 of the 12 us that the symptom saves by itself."""
    result = found(CHAIN, symptom=("scale:[fs]*=0", (9, 21)), cause=("scale:first=0", (9, 17)))
    assert savings(result) == [("cause", 8, 8, "replayed", ""), ("symptom", 4, 12, "replayed", "cause")]


def test_a_symptom_that_adds_less_than_all_causes_together_is_not_first(found: Any) -> None:
    """It adds 5 us to causes of 4, 2 and 3 us, each of which saves less."""
    result = found(
        CHAIN,
        symptom=("scale:[fst]*=0", (9, 23)),
        a=("scale:first=0.625", (9, 12)),
        b=("scale:second=0", (17, 21)),
        c=("scale:third=0", (21, 23)),
    )
    assert savings(result) == [
        ("b", 4, 4, "replayed", ""),
        ("symptom", 5, 14, "replayed", ""),
        ("a", 3, 3, "replayed", ""),
        ("c", 2, 2, "replayed", ""),
    ]


def test_a_symptom_that_adds_more_than_all_causes_together_is_first(found: Any) -> None:
    """Of its 14 us the causes have 4 and 2."""
    result = found(
        CHAIN,
        symptom=("scale:[fst]*=0", (9, 23)),
        b=("scale:second=0", (17, 21)),
        c=("scale:third=0", (21, 23)),
    )
    assert savings(result) == [
        ("symptom", 8, 14, "replayed", ""),
        ("b", 4, 4, "replayed", ""),
        ("c", 2, 2, "replayed", ""),
    ]


BESIDE = """
    step 1    | -----
    launch    |  ab
    s7 first  |   aaaaaaaaaa
    s9 second |    bbbbbbbbbbbb
"""


def test_time_that_something_else_fills_is_no_finding(found: Any) -> None:
    """The second kernel ends 3 us after the first, so without the first the step is as long."""
    result = found(BESIDE, hidden=("scale:first=0", (3, 13)), long=("scale:second=0", (4, 16)))
    assert savings(result) == [("long", 3, 3, "replayed", "")]
    (row,) = result["checks"][result["checks"]["detector"] == "hidden"].itertuples()
    assert (row.estimate_ns, row.saving_ns, row.basis, row.scenario) == (
        10 * US, 0, "replayed", "scale:first=0",
    )  # fmt: skip
    assert row.verdict.startswith("estimated at 10.0 µs")


def test_two_that_help_each_other_promise_no_more_than_each_alone(found: Any) -> None:
    """Behind half of the second kernel the first ends last, so that without it 3 us are saved, not 2."""
    text = BESIDE.replace("launch    |  ab", "launch    |  abc") + "s9 third | " + " " * 15 + "cc\n"
    half, rest = "scale:second=0.5", "scale:[ft]*=0"
    result = found(text, half=(half, (4, 16)), rest=(rest, (3, 18)))
    step = result.meta["base_ns"] / US
    assert step - projected(run_of(text), f"{half}+{rest}") == 8
    assert savings(result) == [("half", 5, 5, "replayed", ""), ("rest", 2, 2, "replayed", "")]


@pytest.mark.parametrize("scenario", ["", "no_such_scenario", "all_to_all_hidden"])
def test_what_cannot_be_replayed_is_an_upper_bound(found: Any, scenario: str) -> None:
    result = found(CHAIN, bound=(scenario, (9, 17)))
    assert savings(result) == [("bound", 8, 8, "upper bound", "")]
    (row,) = result["findings"].itertuples()
    assert (row.scenario, row.confidence, row.low_ns, row.high_ns) == ("", "low", 0, 8 * US)
    assert scenario in row.upper_bound


def test_an_upper_bound_gets_what_replayed_findings_leave_of_its_time(found: Any) -> None:
    """Half of the first kernel's time is saved by replay, so half of the bound's is left."""
    result = found(CHAIN, half=("scale:first=0.5", (9, 17)), bound=("", (9, 17)))
    assert savings(result) == [("half", 4, 4, "replayed", ""), ("bound", 4, 8, "upper bound", "")]


def test_upper_bounds_and_replays_together_are_at_most_the_step(found: Any) -> None:
    result = found(CHAIN, most=("scale:*=0.1", (9, 17)), bound=("", (6, 23)), other=("", (6, 23)))
    assert result["findings"]["additional_ns"].sum() <= result.meta["base_ns"]


def test_ranks_that_recorded_different_steps_have_estimates(found: Any) -> None:
    result = found(CHAIN, CHAIN.replace("step 1", "step 2"), bound=("scale:first=0.5", (9, 17)))
    assert [row[3] for row in savings(result)] == ["upper bound"]
    (skip,) = result.skips
    assert "step" in skip.reason
    assert "base_ns" not in result.meta


def test_a_scenario_that_others_leave_nothing_of_does_not_hide_what_comes_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the loop no call of it blocks; the graph still adds to the loop."""
    times = {"loop+graph": 30.0}
    replays = Replays(Skip("graph", "drawn by hand"), 100.0)
    monkeypatch.setattr(replays, "_asked", lambda text, question: times.get(text, "nothing to change"))
    replays._step_ns |= {"loop": 40.0}  # alone, as `sized` leaves it
    where = union(np.array([0]), np.array([90]))
    candidates = [
        SizedFinding(
            Detector(name, name, "", (), lambda context: "", symptom=name == "graph", scenario=name),
            {0: Detection((), saving, where, "seen", "high")},
            {0: saving}, {0: 90.0}, saving, Saving(saving, saving, saving, name),
        )
        for name, saving in (("graph", 50.0), ("blocking", 20.0), ("loop", 60.0))
    ]  # fmt: skip
    rows = [(row.candidate.detector.name, row.additional_ns) for row in ranked(candidates, replays, 1)]
    assert rows == [("loop", 60.0), ("graph", 10.0), ("blocking", 0.0)]

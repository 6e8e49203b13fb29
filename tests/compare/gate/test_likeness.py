"""Like with like: what two runs must have in common."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.compare.gate.gate_sides import side
from tracelens.analysis.common import Setup
from tracelens.compare.gate import Side, gate, read_rule
from tracelens.errors import TracelensError

RULE = [read_rule("kernel.count<=1.0")]
FACTS = {
    "config": {
        "model": {"hidden": 64, "layers": 2},
        "training": {"seq": 128, "micro_batch": 2, "micro_batches": 4, "dtype": "bfloat16"},
    },
    "mesh": {"dp": 2, "ep": 2},
    "software": {"torch": "2.11"},
}
SETUP = Setup.of(["NVIDIA H200"], 2, FACTS)
BASE = replace(side("base", metrics={"kernel.count": [5, 5]}), setup=SETUP)


def cand(**changes: object) -> Side:
    return Side((replace(BASE, name="cand", setup=replace(SETUP, **changes)),))  # type: ignore[arg-type]


def test_what_a_recording_says_of_itself() -> None:
    assert (SETUP.tokens, SETUP.dtype, SETUP.model) == (2048, "bfloat16", {"hidden": 64, "layers": 2})
    assert Setup.read(SETUP.document()) == SETUP
    assert Setup.read({"device": 3, "model": [], "ranks": "x"}) == Setup()
    assert Setup.of([], 1, {"config": {"hidden_size": 8, "lr": 1}}).model == {"hidden_size": 8}


@pytest.mark.parametrize(
    ("changes", "aspect"),
    [
        ({"device": "AMD Instinct MI300X"}, "device"),
        ({"ranks": 4}, "ranks"),
        ({"model": {"hidden": 32}}, "model"),
    ],
)
def test_runs_that_cannot_be_compared(changes: dict[str, object], aspect: str) -> None:
    with pytest.raises(
        TracelensError, match=f"^base and cand cannot be compared: {aspect} .*--allow {aspect}"
    ):
        gate(BASE, cand(**changes), RULE)
    verdict = gate(BASE, cand(**changes), RULE, allow=[aspect])
    assert verdict.verdict == "pass"
    assert [skip.subject for skip in verdict.skips] == [f"same {aspect} on both sides"]


@pytest.mark.parametrize(
    "changes", [{"software": {"torch": "2.12"}}, {"dtype": "float8"}, {"tokens": 9}, {"layout": {"ep": 1}}]
)
def test_other_differences_are_notes(changes: dict[str, object]) -> None:
    verdict = gate(BASE, cand(**changes), RULE)
    (skip,) = verdict.skips
    assert verdict.verdict == "pass"
    assert skip.subject == f"same {next(iter(changes))} on both sides"


def test_what_one_side_does_not_say_is_no_difference() -> None:
    assert gate(BASE, Side((replace(BASE, setup=Setup()),)), RULE).skips == ()


def test_runs_of_one_side_must_be_alike_too() -> None:
    other = replace(BASE, name="other", setup=replace(SETUP, device="NVIDIA H100"))
    with pytest.raises(TracelensError, match=r"^base and other cannot be compared: device"):
        gate([BASE, other], BASE, RULE)


def test_only_what_is_checked_can_be_allowed() -> None:
    with pytest.raises(TracelensError, match=r"not one of device, ranks, model"):
        gate(BASE, BASE, RULE, allow=["everything"])

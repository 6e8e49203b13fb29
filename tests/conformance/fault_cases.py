"""What is planted into a run, and what the first finding has to be."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import tracelens
from tests.conformance.faults import Event, Plan, Rank, Recording, pause, slow_gpu

LOADER: Event = {
    "cat": "user_annotation",
    "name": "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
}
GARBAGE: Event = {"cat": "python_function", "name": "Python GC"}
GEMMS = 8  # of extra work, in each step
STEP = 0.1  # relative distance of the step without the fault


class Case(NamedTuple):
    """A fault of a size, on some ranks of a run."""

    run: str
    fault: str  # with its place in the step behind a colon
    size: float  # of the step; of what is slower, by how much
    ranks: str  # with a comma between them
    detectors: str  # one of which has to be the first finding; with a space between them
    title: str  # words in its title

    def __str__(self) -> str:
        return f"{self.run.rpartition('/')[2]}-{self.fault}-{self.size:g}-{self.ranks}"


@cache
def recording(path: Path) -> Recording:
    return Recording(path)


@cache
def base_ns(path: Path) -> float:
    """The step without a fault."""
    return float(tracelens.analyze(recording(path).planted({}), "findings").meta["base_ns"])


def plan(case: Case, rank: Rank, step_ns: float) -> Plan:
    fault, _, where = case.fault.partition(":")
    ns = case.size * step_ns
    if fault == "slow_gpu":
        return slow_gpu(1 + case.size)
    if fault == "slow_host":
        return Plan(host=1 + case.size)
    if fault == "extra":
        return Plan(extra=[(place, ns / GEMMS) for place in rank.places("spread", GEMMS)])
    if where == "anywhere":
        # In each step at another place before its last collective.
        found = rank.places("spread", 4)
        starts = [
            next(i for i, place in enumerate(found) if place.step == step) for step in range(len(rank.steps))
        ]
        chosen = [found[start + (1 + step) % 3] for step, start in enumerate(starts)]
        return Plan(pauses=[(place, ns, {}) for place in chosen])
    return pause(rank, where, ns, {"pause": None, "loader": LOADER, "gc": GARBAGE}[fault])


def assert_first(case: Case, path: Path) -> None:
    """Cause and culprit of the first finding are those that were planted, and so is what it saves."""
    whole = recording(path)
    ranks = [int(number) for number in case.ranks.split(",")]
    run = whole.planted({number: plan(case, whole.ranks[number], whole.step_ns) for number in ranks})
    result = tracelens.analyze(run, "findings")
    findings, planted_ns = result["findings"], float(result.meta["base_ns"])
    first = findings.iloc[0]
    assert first["detector"] in case.detectors.split(), first["finding"]
    assert case.title in first["finding"]
    assert first["basis"] == "replayed"
    if len(whole.ranks) > 1 and len(ranks) == 1:
        # Who waits for a straggler loses the time; else the rank that loses it is the culprit.
        assert f"rank {ranks[0]}" in first["finding"] or first["worst_rank"] == ranks[0]
    assert planted_ns - first["saving_ns"] == pytest.approx(base_ns(path), rel=STEP)
    assert findings["additional_ns"].sum() <= planted_ns

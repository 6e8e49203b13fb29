"""What grows from step to step: their duration, and the memory that they take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tracelens.arrays import Float, median, unique
from tracelens.findings import Detection, Detections, Quantity, detector
from tracelens.table import Result, Table
from tracelens.trace import Union, is_step
from tracelens.units import Unit, amount

GROWTH_CHANCE = 0.01
"""Share of the orders of its steps that rise as much as a recording's, from which on it does not grow: of a
hundred steady recordings one is told to grow."""

GROWTH_SHARE = 0.02
"""Growth over a recording, as a share of its beginning, below which nobody looks for its cause: clocks that
settle make steps differ by as much."""

_NEVER = Union(np.zeros(0, np.int64), np.zeros(0, np.int64))
_REMEDY = "Look for what piles up: lists, caches, results that keep their graph."
_COMPARED = 50
"""Steps that are compared, evenly spread over longer recordings: more add work and no certainty."""


class Growth(NamedTuple):
    """A quantity that grows from step to step."""

    first: float  # what the line through the steps begins with
    last: float
    each: float  # by which it grows each step
    steps: int


_MEASURES = {
    "first": "of the steps, by the line through them",
    "last": "likewise",
    "growth per step": "median of the slopes between any two steps",
    "growth, share": "(last - first) / first",
    "steps": "that were compared: whole ones after the first",
}
_THRESHOLD = f"by {GROWTH_SHARE:.0%} over the recording, in an order that chance gives in {GROWTH_CHANCE:.0%}"


@detector(
    "growing_steps",
    evidence="steps",
    title="Steps take longer and longer",
    fix="steps that do not grow",
    remedy=_REMEDY,
    needs=("serving", "steps"),
    measures=_MEASURES,
    threshold=_THRESHOLD,
    limits="Needs six steps or more; what grows is not in the trace.",
)
def growing_steps(results: Mapping[str, Result]) -> Detections:
    """Each step takes longer than those before it."""
    summary = results["serving"].data.get("summary")
    if summary is not None and len(summary):
        return "serving steps take as long as their requests need"
    return _growing(results["steps"].data["steps"], "dur_ns", "ns", "steps take longer and longer")


@detector(
    "growing_memory",
    evidence="steps",
    title="Steps take more and more memory",
    fix="memory that does not grow",
    remedy=_REMEDY,
    needs=("steps",),
    measures=_MEASURES,
    threshold=_THRESHOLD,
    limits="Needs memory events (profile_memory=True) of six steps or more.",
)
def growing_memory(results: Mapping[str, Result]) -> Detections:
    """The peak of each step's memory is above those of the steps before it."""
    metrics = results["steps"].data["metrics"]
    peaks = metrics.take(np.flatnonzero(metrics.coded("metric").equals("memory.peak")))
    return _growing(peaks, "value", "bytes", "the peak memory of a step grows")


def _growing(table: Table, column: str, unit: Unit, what: str) -> Detections:
    """The ranks on which a column grows, as facts that save nothing here."""
    in_step = table.coded("step").mask(is_step)
    found: dict[int, Detection] = {}
    for rank in unique(table.array("rank")[in_step]).tolist():
        rows = np.flatnonzero(in_step & (table.array("rank") == rank))
        growth = growth_of(table.array(column)[rows[1:]].astype(float).tolist())
        if growth is None:
            continue
        first, last, each = (amount(value, unit) for value in growth[:3])
        text = f"{what}: from {first} to {last} over {growth.steps} steps, {each} more each time"
        found[rank] = Detection(
            (
                Quantity("first", growth.first, unit),
                Quantity("last", growth.last, unit),
                Quantity("growth per step", growth.each, unit),
                Quantity("growth, share", growth.last / growth.first - 1, "fraction"),
                Quantity("steps", float(growth.steps), "count"),
            ),
            0.0,
            _NEVER,
            text,
            "low",
            fact=f"{text}; {_REMEDY[0].lower()}{_REMEDY[1:-1]}",
        )
    return found or "nothing that grows from step to step"


def growth_of(values: Sequence[float]) -> Growth | None:
    """How values grow, in order; None where their order may be chance, or they grow by next to nothing.

    Kendall's test, exact: of all orders of the values, how many have as few pairs that fall. The slope is
    Theil and Sen's.
    """
    count = min(len(values), _COMPARED)
    if count < 2:
        return None
    place = np.linspace(0, len(values) - 1, count).round()
    numbers: Float = np.array(values)[place.astype(np.int64)]
    before, after = np.triu_indices(count, 1)
    rises = numbers[after] - numbers[before]
    chance = _orders_with(int((rises <= 0).sum()), count)
    each = float(median(rises / (place[after] - place[before])))
    half = each * (len(values) - 1) / 2
    first, last = (float(median(numbers)) + side * half for side in (-1, 1))
    if chance > GROWTH_CHANCE or first <= 0 or last / first - 1 < GROWTH_SHARE:
        return None
    return Growth(first, last, each, len(values))


def _orders_with(falls: int, count: int) -> float:
    """Share of the orders of so many values that have at most so many pairs that fall."""
    share: Float = np.ones(1)
    for placed in range(2, count + 1):
        # The next value may fall below any number of those before it, all equally likely.
        share = np.convolve(share, np.full(placed, 1 / placed))
    return float(share[: falls + 1].sum())

"""The pipelines of a run: which rank is which stage, all on one clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tracelens.analysis.comm import base_ns, clocks, match
from tracelens.analysis.pipeline.microbatches import Passes
from tracelens.analysis.pipeline.stages import Lane
from tracelens.table import Skip
from tracelens.trace import Union

_LISTED = 16


class Stage(NamedTuple):
    """A rank with its place in a pipeline; times by the common clock."""

    part: Passes
    stage: int
    shift: int


def pipelines(ranks: Sequence[Passes], skips: list[Skip]) -> list[tuple[int, list[Stage]]]:
    """The pipelines: number of stages, and those that are in the run.

    Ranks with spans that cannot be placed get a skip.
    """
    there = [one for one in ranks if one.comms is not None and one.spans]
    if not there:
        return []
    talk = [one.comms for one in there if one.comms is not None]
    offset = {one.rank: one.offset_ns for one in clocks(talk, match(talk).instances)}
    shift = {one.rank: base_ns(one, talk[0]) - offset[one.rank] for one in talk}
    groups: dict[tuple[int, ...], list[Passes]] = {}
    for one in there:
        members = tuple(dict.fromkeys(one.members))
        if one.rank in members:
            groups.setdefault(members, []).append(one)
        elif all(span.virtual >= 0 for span in one.spans):
            groups.setdefault((), []).append(one)
        elif members:
            listed = shortened(members)
            reason = f"its pipeline group lists the ranks {listed}, and not this one"
            skips.append(Skip(f"rank {one.rank}", reason))
        else:
            skips.append(Skip(f"rank {one.rank}", "the trace does not list the ranks of its pipeline"))
    found = []
    for members, some in groups.items():
        stages, place = len(members), {rank: number for number, rank in enumerate(members)}
        if not members:
            stages, place = _by_scopes(some)
        found.append((stages, [Stage(one, place[one.rank], shift[one.rank]) for one in some]))
    return found


def _by_scopes(some: Sequence[Passes]) -> tuple[int, dict[int, int]]:
    """Number of stages and the stage of each rank, by the names of scopes."""
    own = {one.rank: sorted({span.virtual for span in one.spans}) for one in some}
    last = max(numbers[-1] for numbers in own.values())
    stages = -(-(last + 1) // max(len(numbers) for numbers in own.values()))
    return stages, {rank: numbers[0] % stages for rank, numbers in own.items()}


def absent(stages: int, some: Sequence[Stage]) -> list[Skip]:
    """A word on the stages of a pipeline that are not in the run."""
    missing = sorted(set(range(stages)) - {one.stage for one in some})
    if not missing:
        return []
    listed = shortened([one.part.rank for one in some])
    reason = "not in the run; the phase and the imbalance are those of the stages that are there"
    return [Skip(f"stage(s) {shortened(missing)} of the pipeline of rank {listed}", reason)]


def shortened(numbers: Sequence[int]) -> str:
    """Numbers for a sentence, the first of them where there are many."""
    first = ", ".join(map(str, numbers[:_LISTED]))
    return first if len(numbers) <= _LISTED else f"{first}, ... ({len(numbers)} in all)"


def lane_of(one: Stage, label: str) -> Lane:
    """A stage in one step."""
    spans = [
        span._replace(start=span.start + one.shift, end=span.end + one.shift)
        for span in one.part.spans
        if span.step == label
    ]
    part = one.part
    return Lane(
        part.rank,
        one.stage,
        spans,
        Union(part.p2p.start + one.shift, part.p2p.end + one.shift),
        Union(part.other.start + one.shift, part.other.end + one.shift),
        part.sends.get(label, 0),
    )


def window_of(one: Stage, label: str) -> tuple[int, int]:
    """Begin and end of a step in which the rank has spans: each span bears the label of its window."""
    window = next(window for window in one.part.steps if window.label == label)
    return window.start + one.shift, window.end + one.shift

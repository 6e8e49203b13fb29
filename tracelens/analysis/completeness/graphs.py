"""Replays of a graph with fewer kernels than its other replays.

All replays of a graph run the same nodes. Which graph a call replays is not recorded, so two replays are of
one graph where one lacks kernels of the other in its middle. A graph that only begins later or ends earlier,
as the first and the last piece of a model do, lacks none there: it is damaged where it is the only one of its
kind and stands between the same replays as one of its siblings.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tracelens.analysis.completeness.doubts import Doubt, over
from tracelens.analysis.completeness.recording import Recording
from tracelens.arrays import Int

MOST = 400
"""Different replays that are compared; so many differ only where nearly all are damaged or none is."""

SIBLINGS = 3
"""So many equal replays tell that one which begins later or ends earlier should be like them."""

LEAST_SHARE = 0.25
"""A replay with less than this of another's kernels is of another graph."""


class _Replays(NamedTuple):
    """Replays by what ran in them.

    Attributes:
        call: event row of each replay's launch call, in the order in which they ran.
        kind: of each replay, the position of its kernels in the lists below.
        names: name codes of each kind's kernels, in order of start.
    """

    call: Int
    kind: Int
    names: list[Int]


def missing_graph_kernels(recording: Recording) -> Iterator[Doubt]:
    """Graph launches whose replays lack kernels that sibling replays have."""
    replays = _replays(recording)
    if not 2 <= len(replays.names) <= MOST:
        return
    count = np.bincount(replays.kind, minlength=len(replays.names))
    lacking = {
        kind: sibling
        for kind in range(len(replays.names))
        if (sibling := _sibling(kind, replays, count)) >= 0
    }
    damaged = np.flatnonzero(np.isin(replays.kind, list(lacking)))
    if not len(damaged):
        return
    work = recording.work
    calls = replays.call[damaged]
    rows = np.flatnonzero(np.isin(work.launch, calls))
    owner = np.searchsorted(np.sort(calls), work.launch[rows])
    start = np.full(len(calls), np.iinfo(np.int64).max)
    end = np.zeros(len(calls), dtype=np.int64)
    np.minimum.at(start, owner, work.start[rows])
    np.maximum.at(end, owner, work.end[rows])
    worst = min(lacking, key=lambda kind: len(replays.names[kind]) / len(replays.names[lacking[kind]]))
    lost = sum(
        int(count[kind]) * (len(replays.names[sibling]) - len(replays.names[kind]))
        for kind, sibling in lacking.items()
    )
    yield Doubt(
        "missing graph kernels",
        len(damaged),
        f"{len(damaged):,} of {len(replays.call):,} graph replays lack {lost:,} kernels that others of "
        f"the same graph have; the worst has {len(replays.names[worst]):,} of "
        f"{len(replays.names[lacking[worst]]):,}",
        over(start, end),
    )


def _replays(recording: Recording) -> _Replays:
    """All replays with kernels, told apart by names and order of their kernels."""
    work = recording.work
    rows = np.flatnonzero(recording.under_graph)
    rows = rows[np.argsort(work.launch[rows], kind="stable")]
    calls, first, number = np.unique(work.launch[rows], return_index=True, return_counts=True)
    in_time = np.argsort(work.start[rows[first]], kind="stable")
    calls, first, number = calls[in_time], first[in_time], number[in_time]
    kinds: dict[bytes, int] = {}
    names: list[Int] = []
    kind = np.zeros(len(calls), dtype=np.int64)
    for replay, (begin, length) in enumerate(zip(first.tolist(), number.tolist(), strict=True)):
        sequence = work.name[rows[begin : begin + length]]
        key = np.sort(sequence).tobytes()
        if key not in kinds:
            kinds[key] = len(kinds)
            names.append(sequence)
        kind[replay] = kinds[key]
    return _Replays(calls, kind, names)


def _sibling(kind: int, replays: _Replays, count: Int) -> int:
    """The smallest other kind of replay that this one lacks kernels of, -1 for none."""
    names = replays.names
    own = names[kind]
    candidates = [
        other
        for other in range(len(names))
        if len(own) < len(names[other]) <= len(own) / LEAST_SHARE and count[other] >= count[kind]
    ]
    for other in sorted(candidates, key=lambda other: len(names[other])):
        if not _is_part(own, names[other]):
            continue
        amid = count[kind] == 1 and count[other] >= SIBLINGS and _stands_alike(kind, other, replays.kind)
        if amid or not _is_piece(own, names[other]):
            return other
    return -1


def _stands_alike(kind: int, other: int, order: Int) -> bool:
    """Whether the replay of a kind stands between the same kinds of replay as one of another kind."""
    neighbours = [*zip(order[:-2].tolist(), order[1:-1].tolist(), order[2:].tolist(), strict=True)]
    around = {(before, after) for before, middle, after in neighbours if middle == kind}
    return any((before, after) in around for before, middle, after in neighbours if middle == other)


def _is_part(own: Int, other: Int) -> bool:
    """Whether each name is as often in the other."""
    size = int(max(own.max(), other.max())) + 1
    return bool((np.bincount(own, minlength=size) <= np.bincount(other, minlength=size)).all())


def _is_piece(own: Int, other: Int) -> bool:
    """Whether it stands in the other without a break."""
    for begin in np.flatnonzero(other[: len(other) - len(own) + 1] == own[0]).tolist():
        if np.array_equal(other[begin : begin + len(own)], own):
            return True
    return False

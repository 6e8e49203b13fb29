"""Where one host thread goes on where another one stops, from when threads are silent and at work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from tracelens.arrays import Int, lookup
from tracelens.table import nearest
from tracelens.trace import Trace, exclusive
from tracelens.what_if.graph.gloo import Chain

_HALF, _SLIGHT = 0.5, 0.1
# How long before and after a silence its own thread must have been the only one at work.
_AROUND_NS = 100_000
_NEAR = 32
"""With more threads than twice as many, a silence is held against those of so many nodes behind its begin and
before its end."""

_CHECKED = 1 << 18
"""So many pairs of a silence and a thread are checked for whether that leaves any thread out."""


class Handovers(NamedTuple):
    """Edges from a node of one thread to one of another.

    Attributes:
        before: node that is done.
        after: node that goes on.
        lag: ns between both.
        unseen: silences known to have nodes of more threads inside than they were held against.
    """

    before: Int
    after: Int
    lag: Int
    unseen: int


def handovers(trace: Trace, thread: Int, chains: Mapping[int, Chain]) -> Handovers:
    """Where a thread waits for another one.

    A thread waits between two of its nodes when the other one has nodes there, is at work most of the time
    in which the first is in no op, is not at work right before and after, and the first is in no op while
    the other one works. Then the other's first node follows the first's last one, and the first's next node
    the other's last one.

    Args:
        trace: of the rank.
        thread: number of the thread of each event.
        chains: thread to its nodes in order.
    """
    lanes = list(chains)
    if len(lanes) < 2:
        none = np.empty(0, dtype=np.int64)
        return Handovers(none, none, none, 0)
    size = [len(chains[number].node) for number in lanes]
    lane = np.repeat(np.arange(len(lanes)), size)
    node, start, end = (
        np.concatenate([getattr(chains[number], name) for number in lanes])
        for name in ("node", "start", "end")
    )
    gap = np.flatnonzero(lane[1:] == lane[:-1])
    starts, ends = ByLane(lane, start), ByLane(lane, end)
    every, (gap, other) = gap, _candidates(gap, lane, start, end, len(lanes))
    ops, active = _activity(trace, thread, lanes)
    one, low, high = lane[gap], end[gap], start[gap + 1]
    first, last = starts.place(other, low, "left"), ends.place(other, high, "right") - 1
    some = np.flatnonzero(last >= first)
    unseen = 0
    if len(lanes) > 2 * _NEAR + 1:
        crowded = _crowded(every, start, end)[: max(_CHECKED // len(lanes), 1)]
        number = _threads_inside(crowded, lane, start, end, len(lanes))
        unseen = int((number > np.bincount(gap[some], minlength=len(lane))[crowded]).sum())
    gap, other, one, low, high, first, last = (x[some] for x in (gap, other, one, low, high, first, last))
    begun, done = start[first], end[last]
    around = np.minimum(high - low, _AROUND_NS)
    silent = (high - low) - ops.covered(one, low, high)
    outside = active.covered(other, low - around, low) + active.covered(other, high, high + around)
    beside = active.covered(other, low, low + 1) + active.covered(other, high, high + 1)
    waits = np.flatnonzero(
        (beside == 0)
        & (active.covered(other, low, high) >= _HALF * silent)
        & (ops.covered(one, begun, done + 1) <= _SLIGHT * (done + 1 - begun))
        & (outside <= _SLIGHT * 2 * around)
    )
    there, back = (gap[waits], first[waits]), (last[waits], gap[waits] + 1)
    # Each silence has both of its edges next to each other.
    before, after = (np.stack(pair, axis=1).ravel() for pair in zip(there, back, strict=True))
    lag = np.stack((begun - low, high - done), axis=1)[waits].ravel()
    return Handovers(node[before], node[after], lag, unseen)


class ByLane:
    """Where times stand among the times of their own lane.

    Args:
        lane: ascending.
        time: ns, ascending within each lane.
    """

    def __init__(self, lane: Int, time: Int) -> None:
        self._distinct = np.unique(time)
        self._key = lane * (len(self._distinct) + 1) + np.searchsorted(self._distinct, time)

    def place(self, lane: Int, time: Int, side: str) -> Int:
        """Number of rows in earlier lanes, and of those in the own lane before (or up to) a time."""
        at = np.searchsorted(self._distinct, time, side="left")
        known = np.append(self._distinct, 0)[at] == time
        known &= at < len(self._distinct)
        key = lane * (len(self._distinct) + 1) + at
        if side == "right":
            key += known
        return np.searchsorted(self._key, key, side="left")


class Covered:
    """Sets of points in time, one a lane.

    Args:
        lane: of each interval.
        start: ns.
        end: ns.
    """

    def __init__(self, lane: Int, start: Int, end: Int) -> None:
        own = exclusive(start, end, lane)
        kept = np.flatnonzero(end > own)
        kept = kept[np.lexsort((own[kept], lane[kept]))]
        lane, self._start, self._end = lane[kept], own[kept], end[kept]
        self._before = np.concatenate(([0], np.cumsum(self._end - self._start)))
        self._places = ByLane(lane, self._start)

    def _until(self, lane: Int, time: Int) -> Int:
        """Covered time in earlier lanes, and in the own lane before a time."""
        at = self._places.place(lane, time, "left")
        first = self._places.place(lane, np.full_like(time, np.iinfo(np.int64).min), "left")
        last = np.maximum(at - 1, 0)
        if not len(self._start):
            return np.zeros_like(time)
        running_on = np.where(at > first, np.maximum(self._end[last] - time, 0), 0)
        return self._before[at] - running_on

    def covered(self, lane: Int, low: Int, high: Int) -> Int:
        """How much of each interval lies in the set of its lane."""
        return self._until(lane, high) - self._until(lane, low)


def _candidates(gap: Int, lane: Int, start: Int, end: Int, lanes: int) -> tuple[Int, Int]:
    """(gap, lane that may have been waited for) of each pair that is looked at, in order of both lanes."""
    if lanes <= 2 * _NEAR + 1:
        pairs = np.repeat(gap, lanes), np.tile(np.arange(lanes), len(gap))
    else:
        offset = np.arange(_NEAR)
        by_start, by_end = np.argsort(start, kind="stable"), np.argsort(end, kind="stable")
        behind = np.searchsorted(start[by_start], end[gap])[:, None] + offset
        ahead = np.searchsorted(end[by_end], start[gap + 1], side="right")[:, None] - 1 - offset
        inside = (behind < len(start), ahead >= 0)
        near = lane[by_start[np.minimum(behind, len(start) - 1)]], lane[by_end[np.maximum(ahead, 0)]]
        rows = [np.broadcast_to(gap[:, None], mask.shape)[mask] for mask in inside]
        found = np.concatenate([own[mask] for own, mask in zip(near, inside, strict=True)])
        distinct = np.unique(np.concatenate(rows) * lanes + found)
        pairs = distinct // lanes, distinct % lanes
    gap, other = pairs
    apart = lane[gap] != other
    gap, other = gap[apart], other[apart]
    order = np.lexsort((gap, other, lane[gap]))
    return gap[order], other[order]


def _crowded(gap: Int, start: Int, end: Int) -> Int:
    """Silences with more nodes inside than they are held against, those with most first."""
    inside = [
        np.searchsorted(times, start[gap + 1], side="right") - np.searchsorted(times, end[gap])
        for times in (np.sort(start), np.sort(end))
    ]
    count = np.minimum(*inside)
    return gap[np.argsort(-count, kind="stable")][: int((count > _NEAR).sum())]


def _threads_inside(gap: Int, lane: Int, start: Int, end: Int, lanes: int) -> Int:
    """Of each silence the number of other threads that have nodes in it."""
    gap, other = np.repeat(gap, lanes), np.tile(np.arange(lanes), len(gap))
    first = ByLane(lane, start).place(other, end[gap], "left")
    behind = ByLane(lane, end).place(other, start[gap + 1], "right")
    inside = (behind > first) & (lane[gap] != other)
    number: Int = inside.reshape(-1, lanes).sum(axis=1)
    return number


def _activity(trace: Trace, thread: Int, lanes: list[int]) -> tuple[Covered, Covered]:
    """When each thread is in an op, and when it is in an op or a call."""
    events = trace.arrays
    is_op = events.where("op")
    around = nearest(events.parent, events.depth, is_op)
    above = events.parent
    root = is_op & (lookup(around, above, -1) < 0)
    order = np.argsort(lanes)
    place = np.searchsorted(np.array(lanes)[order], thread)
    known = np.isin(thread, lanes)
    lane = np.where(known, order[np.minimum(place, len(lanes) - 1)], -1)
    ops = np.flatnonzero(known & root)
    active = np.flatnonzero(known & (root | events.where("launch")))
    return (
        Covered(lane[ops], events.start[ops], events.end[ops]),
        Covered(lane[active], events.start[active], events.end[active]),
    )

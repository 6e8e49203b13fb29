"""Where one host thread resumes as another stops, inferred from when threads are silent and busy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np

from tracelens.arrays import Int, lookup
from tracelens.table import nearest
from tracelens.trace import Trace, exclusive
from tracelens.what_if.graph.gloo import Chain

_HALF, _SLIGHT = 0.5, 0.1
# How long before and after a silence its own thread must have been the only one at work.
_AROUND_NS = 100_000
_NEAR = 32
"""With more than twice as many threads, a silence is compared with the threads of this many nodes after its
begin and before its end."""

_CHECKED = 1 << 18
"""Pairs of a silence and a thread checked for whether that leaves any thread out."""


class Handovers(NamedTuple):
    """Edges from a node of one thread to one of another."""

    before: Int  # node that is done
    after: Int  # node that goes on
    lag: Int  # ns between both
    unseen: int  # silences known to contain nodes of more threads than they were compared with


def handovers(trace: Trace, thread: Int, chains: Mapping[int, Chain]) -> Handovers:
    """Where a thread waits for another one.

    A thread waits for another between two of its nodes if the other has nodes in that gap, is busy for most
    of the time in which the first is in no op, is idle right before and after, and the first is in no op
    while the other works. Then the other's first node in the gap follows the node before the gap, and the
    node after the gap follows the other's last one.

    `thread` is the number of each event's thread, `chains` thread to its nodes in order.
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
    first = starts.position(other, end[gap], "left")
    last = ends.position(other, start[gap + 1], "right") - 1
    inside = np.flatnonzero(last >= first)
    unseen = 0
    if len(lanes) > 2 * _NEAR + 1:
        crowded = _crowded(every, start, end)[: max(_CHECKED // len(lanes), 1)]
        number = _threads_inside(crowded, lane, start, end, len(lanes))
        unseen = int((number > np.bincount(gap[inside], minlength=len(lane))[crowded]).sum())
    gap, other, first, last = (column[inside] for column in (gap, other, first, last))
    own, low, high, begun, done = lane[gap], end[gap], start[gap + 1], start[first], end[last]
    around = np.minimum(high - low, _AROUND_NS)
    silent = (high - low) - ops.covered(own, low, high)
    outside = active.covered(other, low - around, low) + active.covered(other, high, high + around)
    beside = active.covered(other, low, low + 1) + active.covered(other, high, high + 1)
    waits = np.flatnonzero(
        (beside == 0)
        & (active.covered(other, low, high) >= _HALF * silent)
        & (ops.covered(own, begun, done + 1) <= _SLIGHT * (done + 1 - begun))
        & (outside <= _SLIGHT * 2 * around)
    )
    there, back = (gap[waits], first[waits]), (last[waits], gap[waits] + 1)
    # Each silence has both of its edges next to each other.
    before, after = (np.stack(pair, axis=1).ravel() for pair in zip(there, back, strict=True))
    lag = np.stack((begun - low, high - done), axis=1)[waits].ravel()
    return Handovers(node[before], node[after], lag, unseen)


class ByLane:
    """Positions of times among the times of their own lane.

    Args:
        lane: ascending.
        time: ns, ascending within each lane.
    """

    def __init__(self, lane: Int, time: Int) -> None:
        self._distinct = np.unique(time)
        self._key = lane * (len(self._distinct) + 1) + np.searchsorted(self._distinct, time)

    def position(self, lane: Int, time: Int, side: Literal["left", "right"]) -> Int:
        """Number of rows in earlier lanes, and of those in the own lane before (or up to) a time."""
        key = lane * (len(self._distinct) + 1) + np.searchsorted(self._distinct, time, side=side)
        return np.searchsorted(self._key, key, side="left")


class Covered:
    """Sets of points in time, one per lane.

    Args:
        lane, start, end: of each interval, ns.
    """

    def __init__(self, lane: Int, start: Int, end: Int) -> None:
        own = exclusive(start, end, lane)
        kept = np.flatnonzero(end > own)
        kept = kept[np.lexsort((own[kept], lane[kept]))]
        lane, self._start, self._end = lane[kept], own[kept], end[kept]
        self._before = np.concatenate(([0], np.cumsum(self._end - self._start)))
        self._starts = ByLane(lane, self._start)

    def _until(self, lane: Int, time: Int) -> Int:
        """Covered time in earlier lanes, and in the own lane before a time."""
        position = self._starts.position(lane, time, "left")
        first = self._starts.position(lane, np.full_like(time, np.iinfo(np.int64).min), "left")
        end = lookup(self._end, np.where(position > first, position - 1, -1), time)
        until: Int = self._before[position] - np.maximum(end - time, 0)
        return until

    def covered(self, lane: Int, low: Int, high: Int) -> Int:
        """How much of each interval lies in the set of its lane."""
        return self._until(lane, high) - self._until(lane, low)


def _candidates(gap: Int, lane: Int, start: Int, end: Int, lanes: int) -> tuple[Int, Int]:
    """(gap, lane it may have waited for) of each pair to check, in order of both lanes."""
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
        near_lane = np.concatenate([own[mask] for own, mask in zip(near, inside, strict=True)])
        distinct = np.unique(np.concatenate(rows) * lanes + near_lane)
        pairs = distinct // lanes, distinct % lanes
    gap, other = pairs
    apart = lane[gap] != other
    gap, other = gap[apart], other[apart]
    order = np.lexsort((gap, other, lane[gap]))
    return gap[order], other[order]


def _crowded(gap: Int, start: Int, end: Int) -> Int:
    """Silences with more nodes inside than they are compared with, those with most first."""
    inside = [
        np.searchsorted(times, start[gap + 1], side="right") - np.searchsorted(times, end[gap])
        for times in (np.sort(start), np.sort(end))
    ]
    count = np.minimum(*inside)
    return gap[np.argsort(-count, kind="stable")][: int((count > _NEAR).sum())]


def _threads_inside(gap: Int, lane: Int, start: Int, end: Int, lanes: int) -> Int:
    """Of each silence the number of other threads that have nodes in it."""
    gap, other = np.repeat(gap, lanes), np.tile(np.arange(lanes), len(gap))
    first = ByLane(lane, start).position(other, end[gap], "left")
    behind = ByLane(lane, end).position(other, start[gap + 1], "right")
    inside = (behind > first) & (lane[gap] != other)
    number: Int = inside.reshape(-1, lanes).sum(axis=1)
    return number


def _activity(trace: Trace, thread: Int, lanes: list[int]) -> tuple[Covered, Covered]:
    """When each thread is in an op, and when it is in an op or a call."""
    events = trace.arrays
    is_op = events.where("op") & ~events.copied
    around = nearest(events.parent, events.depth, is_op)
    root = is_op & (lookup(around, events.parent, -1) < 0)
    lane_of = np.full(int(thread.max(initial=0)) + 1, -1, dtype=np.int64)
    lane_of[lanes] = np.arange(len(lanes))
    lane = lane_of[thread]
    ops, active = (np.flatnonzero((lane >= 0) & mask) for mask in (root, root | events.where("launch")))
    return (
        Covered(lane[ops], events.start[ops], events.end[ops]),
        Covered(lane[active], events.start[active], events.end[active]),
    )

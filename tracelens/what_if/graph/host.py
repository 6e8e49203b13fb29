"""The host's part of the graph: calls and step marks on its threads, and which thread waits for which.

The trace records no waits between threads: they are inferred from when threads are silent and busy
(`handovers`). Collectives of a CPU-only run are awaited by threads as well (`returns`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
from msgspec import Struct

from tracelens.analysis.host import blocking_calls, threads
from tracelens.arrays import Bool, Int, isin, lookup, median, ordered, taken, unique
from tracelens.table import nearest
from tracelens.trace import STEP_MARK, WORK_KINDS, Trace, Union, exclusive, rows_by_code, union
from tracelens.what_if.graph.graph import Draft, Edge, Node
from tracelens.what_if.thresholds import (
    AROUND_NS,
    BUSY_SHARE,
    IDLE_SHARE,
    PAUSE_NS,
    QUEUE_DEPTH,
    STALLED_LAUNCH,
)


class HostCalls(Struct, frozen=True):
    """The calls of one rank that are nodes."""

    event: Int  # row of each call, ascending in time
    begin: Int  # node of its start
    returned: Int  # node of its end where it waits for a GPU, else -1


class RankHost(Struct, frozen=True):
    """The host of one rank."""

    calls: HostCalls  # launches and calls that wait
    marks: tuple[Int, Int, Int]  # (row of the step mark, node of its start, node of its end), ascending
    work: Int  # node of each activity that runs on a host thread itself, -1 for all others
    thread: Int  # number of the thread of each event
    nodes: dict[int, Chain]  # thread to its nodes in order, with the times at which they begin and end
    returns: dict[int, Returns]  # thread to its waits for collectives of the host
    unseen: int  # as in Handovers


_NEAR = 32
"""With more than twice as many threads, a silence is compared with the threads of this many nodes after its
begin and before its end."""
_CHECKED = 1 << 18
"""Pairs of a silence and a thread checked for whether that leaves any thread out."""


class Handovers(Struct, frozen=True):
    """Edges from a node of one thread to one of another."""

    before: Int  # node that is done
    after: Int  # node that goes on
    lag: Int  # ns between both
    resumed: Int  # nodes that go on when another thread lets them, though it is not known which one
    unseen: int  # silences known to contain nodes of more threads than they were compared with


class ByLane:
    """Positions of times (ns, ascending within each lane) among the times of their own lane."""

    def __init__(self, lane: Int, time: Int) -> None:
        self._distinct = unique(time)
        self._key = lane * (len(self._distinct) + 1) + np.searchsorted(self._distinct, time)

    def position(self, lane: Int, time: Int, side: Literal["left", "right"]) -> Int:
        """Number of rows in earlier lanes, and of those in the own lane before (or up to) a time."""
        key = lane * (len(self._distinct) + 1) + np.searchsorted(self._distinct, time, side=side)
        return np.searchsorted(self._key, key, side="left")


class Covered:
    """Sets of points in time, one per lane, from intervals in ns."""

    def __init__(self, lane: Int, start: Int, end: Int) -> None:
        lane, start, end = taken((lane, start, end), ordered(lane, start))
        own = exclusive(start, end, lane)
        self._lane, self._start, self._end = taken((lane, own, end), end > own)
        self._before = np.concatenate(([0], np.cumsum(self._end - self._start)))
        self._starts = ByLane(self._lane, self._start)

    def _until(self, lane: Int, time: Int) -> Int:
        """Covered time in earlier lanes, and in the own lane before a time."""
        position = self._starts.position(lane, time, "left")
        first = np.searchsorted(self._lane, lane)
        end = lookup(self._end, np.where(position > first, position - 1, -1), time)
        until: Int = self._before[position] - np.maximum(end - time, 0)
        return until

    def covered(self, lane: Int, low: Int, high: Int) -> Int:
        """How much of each interval lies in the set of its lane."""
        return self._until(lane, high) - self._until(lane, low)

    @property
    def anywhere(self) -> Union:
        """The points in time that lie in the set of any lane."""
        return union(self._start, self._end)

    def gaps(self, least_ns: int) -> Covered:
        """What lies between the intervals of a lane where it is longer than this."""
        follows = self._lane[1:] == self._lane[:-1]
        rows = np.flatnonzero(follows & (self._start[1:] - self._end[:-1] > least_ns))
        return Covered(self._lane[rows], self._end[rows], self._start[rows + 1])


class Chain(Struct, frozen=True):
    """Nodes of one thread in order of time, ns by the trace's own clock."""

    node: Int
    start: Int
    end: Int


class Returns(Struct, frozen=True):
    """Where a thread resumes when a collective is done."""

    work: Int  # the collective, index into the trace's `work`
    after: Int  # index in the thread's chain of the node after the wait
    lag: Int  # from the collective's end to that node, ns: host time


def host(trace: Trace, draft: Draft) -> RankHost:
    """Add the host of one rank to its part of the graph.

    A call is a point where it starts; the time until the next point of its thread is the host's own. A call
    that waits for a GPU has a second point where it returns. A thread that is silent while another works and
    then resumes (the backward pass has its own thread) waited for it, see `handovers`; where it is not known
    for which one, it keeps its position behind the others, as at its beginning. The host time of blocking
    calls is added with what they wait for, see `join_waits`.
    """
    events, work, thread = trace.arrays, trace.work, threads(trace)
    if work.cpu_only:
        event, waits = np.empty(0, dtype=np.int64), np.empty(0, dtype=bool)
    else:
        # Threads that launch nothing, such as a communication library's watchdog that polls events, do not
        # count; nor does a call inside another.
        launches = np.zeros(len(events.start), dtype=bool)
        launches[work.launch[work.launch >= 0]] = True
        inner = lookup(events.where("launch"), events.parent, False)
        waiting = blocking_calls(trace, work)
        busy = unique(thread[launches])
        event = np.flatnonzero((launches | (waiting & ~inner)) & np.isin(thread, busy))
        event = event[np.argsort(events.start[event], kind="stable")]
        waits = (waiting | trace.once(full_queue))[event]
    begin = draft.add(Node.POINT, events.start[event], event=event)
    returned = np.full(len(event), -1, dtype=np.int64)
    returned[waits] = draft.add(Node.WAITED, events.end[event[waits]], event=event[waits])
    mark = np.flatnonzero(events.fitting(STEP_MARK, "annotation"))
    mark = mark[np.argsort(events.start[mark], kind="stable")]
    opened = draft.add(Node.POINT, events.start[mark], event=mark)
    closed = draft.add(Node.POINT, events.end[mark], event=mark)
    own = np.full(len(work.event), -1, dtype=np.int64)
    rows = np.flatnonzero(work.cpu_only & (work.kind != WORK_KINDS.index("comm")))
    own[rows] = draft.add(Node.WORK, work.start[rows], dur=work.dur[rows], event=work.event[rows], work=rows)
    parts = (
        (begin, event, events.start[event], events.start[event]),
        (returned[waits], event[waits], events.end[event[waits]], events.end[event[waits]]),
        (opened, mark, events.start[mark], events.start[mark]),
        (closed, mark, events.end[mark], events.end[mark]),
        (own[rows], work.event[rows], work.start[rows], work.end[rows]),
    )
    node, row, start, end = (np.concatenate(column) for column in zip(*parts, strict=True))
    # A call that returns when the next one starts comes first.
    order = ordered(thread[row], start, end, events.start[row])
    numbers, first = np.unique(thread[row[order]], return_index=True)
    by_thread = (np.split(column[order], first[1:]) for column in (node, start, end))
    chains = {number: Chain(*part) for number, *part in zip(numbers.tolist(), *by_thread, strict=False)}

    # Host time within threads, and what one thread waits for in another.
    back, links = returns(trace, chains), handovers(trace, thread, chains)
    explained = np.zeros(draft.count, dtype=bool)
    explained[links.after] = explained[links.resumed] = explained[returned[waits]] = True
    for number, chain in chains.items():
        src, dst, lag = chain.node[:-1], chain.node[1:], chain.start[1:] - chain.end[:-1]
        lag[back[number].after - 1] = back[number].lag
        keep = ~explained[dst]
        draft.join(Edge.HOST, src[keep], dst[keep], lag[keep])
    draft.join(Edge.HANDOVER, links.before, links.after, links.lag)
    if chains:
        # Threads without a handover start, or go on, behind what other threads did before: what ended last
        # then on another one.
        node, start, end = (
            np.concatenate([getattr(chain, name) for chain in chains.values()])
            for name in ("node", "start", "end")
        )
        lane = np.repeat(np.arange(len(chains)), [len(chain.node) for chain in chains.values()])
        first = np.array([int(chain.node[0]) for chain in chains.values()])
        unexplained = np.concatenate((first[~isin(first, links.after)], links.resumed))
        rows = np.flatnonzero(np.isin(node, unexplained))
        order = ordered(end, node)
        before, by_end = np.searchsorted(end[order], start[rows], side="right") - 1, lane[order]
        # Where each run of nodes of one thread begins: what precedes it is of another one.
        run = np.maximum.accumulate(np.where(np.diff(by_end, prepend=-1) != 0, np.arange(len(by_end)), 0))
        before = np.where(lookup(by_end, before, -1) == lane[rows], lookup(run, before, 0) - 1, before)
        known = before >= 0
        draft.join(Edge.ORDER, node[order[before[known]]], node[rows[known]])
    return RankHost(
        calls=HostCalls(event, begin, returned),
        marks=(mark, opened, closed),
        work=own,
        thread=thread,
        nodes=chains,
        returns=back,
        unseen=links.unseen,
    )


def handovers(trace: Trace, thread: Int, chains: Mapping[int, Chain]) -> Handovers:
    """Where a thread waits for another one.

    A thread waits for another between two of its nodes if the other has nodes in that gap, is busy for most
    of the time in which the first is in no op (its own pauses aside), is idle right before and after, and the
    first is in no op while the other works. Then the other's first node in the gap follows the node before
    the gap, and the node after the gap follows the other's last one.

    A thread that is in no op or call for long, while others work for most of that time, waited for one of
    them: its next node is one of those that are `resumed`.

    `thread` is the number of each event's thread, `chains` thread to its nodes in order.
    """
    lanes = list(chains)
    if len(lanes) < 2:
        none = np.empty(0, dtype=np.int64)
        return Handovers(none, none, none, none, 0)
    size = [len(chains[number].node) for number in lanes]
    lane = np.repeat(np.arange(len(lanes)), size)
    node, start, end = (
        np.concatenate([getattr(chains[number], name) for number in lanes])
        for name in ("node", "start", "end")
    )
    gaps = np.flatnonzero(lane[1:] == lane[:-1])
    starts, ends = ByLane(lane, start), ByLane(lane, end)
    gap, other = _candidates(gaps, lane, start, end, len(lanes))

    # When each thread is in an op, and when it is in an op or a call.
    events = trace.arrays
    is_op = events.where("op") & ~events.copied
    is_root = is_op & (lookup(nearest(events.parent, events.depth, is_op), events.parent, -1) < 0)
    lane_of = np.full(int(thread.max(initial=0)) + 1, -1, dtype=np.int64)
    lane_of[lanes] = np.arange(len(lanes))
    lane_of_event = lane_of[thread]
    is_active = is_root | events.where("launch")
    ops, active = (
        Covered(lane_of_event[rows], events.start[rows], events.end[rows])
        for mask in (is_root, is_active)
        for rows in [np.flatnonzero((lane_of_event >= 0) & mask)]
    )

    first = starts.position(other, end[gap], "left")
    last = ends.position(other, start[gap + 1], "right") - 1
    inside = np.flatnonzero(last >= first)
    unseen = 0
    if len(lanes) > 2 * _NEAR + 1:
        # Silences with more nodes inside than they were compared with, those with most first, and the number
        # of other threads that have nodes in each.
        count = np.minimum(
            *(
                np.searchsorted(times, start[gaps + 1], side="right") - np.searchsorted(times, end[gaps])
                for times in (np.sort(start), np.sort(end))
            )
        )
        crowded = gaps[np.argsort(-count, kind="stable")][: int((count > _NEAR).sum())]
        crowded = crowded[: max(_CHECKED // len(lanes), 1)]
        silence, beside = np.repeat(crowded, len(lanes)), np.tile(np.arange(len(lanes)), len(crowded))
        behind = ends.position(beside, start[silence + 1], "right")
        has_nodes = (behind > starts.position(beside, end[silence], "left")) & (lane[silence] != beside)
        threads_inside = has_nodes.reshape(-1, len(lanes)).sum(axis=1)
        unseen = int((threads_inside > np.bincount(gap[inside], minlength=len(lane))[crowded]).sum())

    gap, other, first, last = (column[inside] for column in (gap, other, first, last))
    own, low, high, begun, done = lane[gap], end[gap], start[gap + 1], start[first], end[last]
    around = np.minimum(high - low, AROUND_NS)
    silent = (high - low) - ops.covered(own, low, high)
    outside = active.covered(other, low - around, low) + active.covered(other, high, high + around)
    at_border = active.covered(other, low, low + 1) + active.covered(other, high, high + 1)
    # While neither does anything, such as in a pause of the other's program, nobody can tell who waits.
    resting = active.gaps(PAUSE_NS).covered(other, begun, done + 1)
    waits = np.flatnonzero(
        (at_border == 0)
        & (active.covered(other, low, high) >= BUSY_SHARE * (silent - resting))
        & (ops.covered(own, begun, done + 1) <= IDLE_SHARE * (done + 1 - begun))
        & (outside <= IDLE_SHARE * 2 * around)
    )
    there, back = (gap[waits], first[waits]), (last[waits], gap[waits] + 1)
    # Each silence has both of its edges next to each other.
    before, after = (np.stack(pair, axis=1).ravel() for pair in zip(there, back, strict=True))
    lag = np.stack((begun - low, high - done), axis=1)[waits].ravel()
    # Silences of which no other thread alone has the pattern.
    is_explained = np.zeros(len(lane), dtype=bool)
    is_explained[gap[waits]] = True
    silence = gaps[~is_explained[gaps] & (start[gaps + 1] - end[gaps] > PAUSE_NS)]
    low, high = end[silence], start[silence + 1]
    is_wait = active.anywhere.covered(low, high) >= BUSY_SHARE * (high - low)
    is_wait &= active.covered(lane[silence], low, high) <= IDLE_SHARE * (high - low)
    return Handovers(node[before], node[after], lag, node[silence[is_wait] + 1], unseen)


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
        distinct = unique(np.concatenate(rows) * lanes + near_lane)
        pairs = distinct // lanes, distinct % lanes
    gap, other = pairs
    apart = lane[gap] != other
    gap, other = gap[apart], other[apart]
    order = ordered(lane[gap], other, gap)
    return gap[order], other[order]


def returns(trace: Trace, chains: Mapping[int, Chain]) -> dict[int, Returns]:
    """Waits for collectives in each thread, in order of their ends.

    A wait is a gap between two nodes in which a collective ended after running for most of it.
    """
    work = trace.work
    rows = np.flatnonzero(work.kind == WORK_KINDS.index("comm"))
    rows = rows[np.argsort(work.end[rows], kind="stable")] if work.cpu_only else rows[:0]
    ends, running = work.end[rows], union(work.start[rows], work.end[rows])
    waits: dict[int, Returns] = {}
    for number, chain in chains.items():
        if not len(rows) or len(chain.node) < 2:
            waits[number] = Returns(*(np.empty(0, dtype=np.int64) for _ in range(3)))
            continue
        low, high = chain.end[:-1], chain.start[1:]
        last = np.searchsorted(ends, high, side="right") - 1
        done = ends[last]
        busy = running.covered(low, np.maximum(high, low))
        gaps = np.flatnonzero((last >= 0) & (done > low) & (busy >= BUSY_SHARE * (high - low)))
        waits[number] = Returns(rows[last[gaps]], gaps + 1, (high - done)[gaps])
    return waits


def starts(trace: Trace, chains: dict[int, Chain], thread: Int, begin: Int, draft: Draft) -> None:
    """Edges from a thread's last node before it started a collective to the collective."""
    work = trace.work
    rows = np.flatnonzero((work.kind == WORK_KINDS.index("comm")) & (work.op >= 0))
    rows = rows[np.argsort(thread[work.op[rows]], kind="stable")]
    numbers, first = np.unique(thread[work.op[rows]], return_index=True)
    parts = dict(zip(numbers.tolist(), np.split(rows, first[1:]), strict=False))
    for number, chain in chains.items():
        started = parts.get(number, rows[:0])
        before = np.searchsorted(chain.end, work.start[started], side="right") - 1
        started, before = started[before >= 0], before[before >= 0]
        draft.join(Edge.LAUNCH, chain.node[before], begin[started], work.start[started] - chain.end[before])


def full_queue(trace: Trace) -> Bool:
    """Which events are launches that waited for room in the queue: long ones behind much queued work."""
    events, work = trace.arrays, trace.work
    result = np.zeros(len(events.start), dtype=bool)
    launched = np.flatnonzero(work.launch >= 0)
    if work.cpu_only or len(launched) <= QUEUE_DEPTH:
        return result
    for rows in rows_by_code(work.lane[launched]).values():
        calls, ends = unique(work.launch[launched[rows]]), np.sort(work.end[launched[rows]])
        begun = events.start[calls]
        queued = np.searchsorted(np.sort(begun), begun) - np.searchsorted(ends, begun, side="right")
        result[calls[queued >= QUEUE_DEPTH]] = True
    calls = unique(work.launch[launched])
    dur = events.end[calls] - events.start[calls]
    for rows in rows_by_code(events.name[calls]).values():
        free = rows[~result[calls[rows]]]
        typical = median(dur[free]) if len(free) else np.inf
        result[calls[rows[dur[rows] <= STALLED_LAUNCH * typical]]] = False
    return result

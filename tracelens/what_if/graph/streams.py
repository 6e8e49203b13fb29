"""What a GPU activity waits for: its launch, its stream, and other streams."""

from __future__ import annotations

import re

import numpy as np

from tracelens.arrays import Int, lookup
from tracelens.trace import Trace, matching
from tracelens.what_if.graph.device import LONG_AGO, Device
from tracelens.what_if.graph.graph import Draft, Edge
from tracelens.what_if.graph.host import Host

_WAITS = re.compile(r"^(?:cuda|hip|cu)StreamWaitEvent")
_RECORDS = re.compile(r"^(?:cuda|hip|cu)EventRecord")
_SHORT_NS = 2_000
"""An activity that starts this soon after its launch and its stream allow it waited for nothing else."""
_SOON_NS = 20_000
"""An activity held up by another stream starts within this time of the end of what it waited for."""


def order(trace: Trace, device: Device, host: Host, draft: Draft) -> None:
    """Add what the GPU activities of one rank wait for: their launch, their stream, and other streams.

    The trace records that a stream waits for an event, but neither which stream nor for what. Two rules:

    - An activity that starts later than its launch and its own stream allow, right after one of another
      stream ended, waited for that one.
    - A wait applies to the stream of the thread's next launch, and waits for what was last launched on
      another stream. If an event is recorded between the wait and that launch, the roles of the two streams
      swap. Waits that the measurement contradicts are dropped.
    """
    work = trace.work
    if work.cpu_only:
        return
    lane = work.lane
    after, before = _held_up(trace, device, lane)
    draft.join(Edge.WAIT, device.finish[before], device.begin[after])
    _follow(trace, device, host.calls.begin, after, draft)
    after, before = _stream_waits(trace, device, lane, host.thread)
    possible = work.end[before] <= work.start[after]
    draft.join(Edge.WAIT, device.finish[before[possible]], device.begin[after[possible]])


def _follow(trace: Trace, device: Device, begin: Int, held_up: Int, draft: Draft) -> None:
    """Edges from launch calls and along streams.

    Their lags are the median time from a call of that name to an activity that nothing else holds up, and
    from an activity to the next one already queued.
    """
    work = trace.work
    behind = np.flatnonzero(device.before >= 0)
    ahead = device.before[behind]
    gap = work.start[behind] - work.end[ahead]
    queued = device.called[behind] < work.start[ahead]
    usual = int(np.median(np.maximum(gap[queued], 0))) if queued.any() else 0
    draft.join(Edge.STREAM, device.finish[ahead], device.begin[behind], np.minimum(np.maximum(usual, 0), gap))
    launched = np.flatnonzero(device.call >= 0)
    launch_ns = work.start[launched] - device.called[launched]
    idle = lookup(work.end, device.before, LONG_AGO)[launched]
    # Kernels of a graph after its first wait for others of the graph.
    first = np.isin(np.arange(len(launched)), np.unique(device.call[launched], return_index=True)[1])
    free = first & (idle <= device.called[launched]) & (launch_ns >= 0) & ~np.isin(launched, held_up)
    name = trace.arrays.name[work.launch[launched]]
    usual = int(np.median(launch_ns[free])) if free.any() else max(int(launch_ns.min(initial=0)), 0)
    least = np.empty_like(launch_ns)
    for code in np.unique(name).tolist():
        same_call = name == code
        free_same = same_call & free
        least[same_call] = np.median(launch_ns[free_same]) if free_same.any() else usual
    draft.join(Edge.LAUNCH, begin[device.call[launched]], device.begin[launched], least)


def _held_up(trace: Trace, device: Device, lane: Int) -> tuple[Int, Int]:
    """(activity, what it waited for) by the first rule."""
    work = trace.work
    ready = np.maximum(device.called, lookup(work.end, device.before, device.called))
    late = np.flatnonzero((work.start - ready > _SHORT_NS) & (device.called > work.start.min() - _SOON_NS))
    best, ended = (np.full(len(late), fill, dtype=np.int64) for fill in (-1, np.iinfo(np.int64).min))
    for number in np.unique(lane).tolist():
        on_lane = np.flatnonzero(lane == number)
        on_lane = on_lane[np.argsort(work.end[on_lane], kind="stable")]
        last_ended = np.searchsorted(work.end[on_lane], work.start[late], side="right") - 1
        last = on_lane[np.maximum(last_ended, 0)]
        done = work.end[last]
        fits = (last_ended >= 0) & (lane[late] != number) & (done > ready[late]) & (done > ended)
        fits &= (work.start[late] - done <= _SOON_NS) & (device.called[last] <= device.called[late])
        best[fits], ended[fits] = last[fits], done[fits]
    return late[best >= 0], best[best >= 0]


def _stream_waits(trace: Trace, device: Device, lane: Int, thread: Int) -> tuple[Int, Int]:
    """(activity, what it waits for) by the second rule."""
    events, work = trace.arrays, trace.work
    nothing = np.empty(0, dtype=np.int64)
    rows = np.flatnonzero(matching(events.names, _WAITS)[events.name] & events.where("launch"))
    known = np.flatnonzero(device.call >= 0)
    if not len(rows) or not len(known):
        return nothing, nothing
    known = known[np.argsort(device.called[known], kind="stable")]
    recorded = np.flatnonzero(matching(events.names, _RECORDS)[events.name] & events.where("launch"))
    caller = thread[work.launch[known]]
    after, before = [nothing], [nothing]
    for number in np.unique(thread[rows]).tolist():
        wait_ns = np.sort(events.start[rows[thread[rows] == number]])
        launched = known[caller == number]
        if not len(launched):
            continue
        next_launch = np.searchsorted(device.called[launched], wait_ns)
        wait_ns, next_launch = wait_ns[next_launch < len(launched)], next_launch[next_launch < len(launched)]
        target = lane[launched[next_launch]]
        marks = np.sort(events.start[recorded[thread[recorded] == number]])
        later = np.searchsorted(marks, device.called[launched[next_launch]]) > np.searchsorted(marks, wait_ns)
        for swap in (False, True):
            kept = later == swap
            pair = _pairs(known, device.called, lane, wait_ns[kept], target[kept], swap)
            after.append(pair[0])
            before.append(pair[1])
    return np.concatenate(after), np.concatenate(before)


def _pairs(known: Int, called: Int, lane: Int, wait_ns: Int, target: Int, swap: bool) -> tuple[Int, Int]:
    """Of each wait, the next launch on the target and the last one elsewhere before; swapped, the reverse."""
    after, before = (np.full(len(wait_ns), -1, dtype=np.int64) for _ in range(2))
    for number in np.unique(target).tolist():
        on = known[lane[known] == number]
        off = known[lane[known] != number]
        late, early = (off, on) if swap else (on, off)
        rows = np.flatnonzero(target == number)
        behind = np.searchsorted(called[late], wait_ns[rows])
        ahead = np.searchsorted(called[early], wait_ns[rows]) - 1
        rows, behind, ahead = (
            column[(behind < len(late)) & (ahead >= 0)] for column in (rows, behind, ahead)
        )
        after[rows], before[rows] = late[behind], early[ahead]
    apart = (after >= 0) & (lane[after] != lane[before])
    return after[apart], before[apart]

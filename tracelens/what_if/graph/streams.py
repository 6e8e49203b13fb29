"""What GPU work waits for: its launch, the work before it on its stream, and other streams."""

from __future__ import annotations

import re

import numpy as np

from tracelens.arrays import Int
from tracelens.trace import Trace, matching
from tracelens.what_if.graph.device import LONG_AGO, Device
from tracelens.what_if.graph.graph import LAUNCH, STREAM, WAIT, Draft
from tracelens.what_if.graph.host import Host

_WAITS = re.compile(r"^(?:cuda|hip|cu)StreamWaitEvent")
_RECORDS = re.compile(r"^(?:cuda|hip|cu)EventRecord")
_SHORT_NS = 2_000
"""Work that starts so soon after its launch and its stream let it waited for nothing else."""
_SOON_NS = 20_000
"""Work that was held up by another stream starts within this time of the end of what it waited for."""


def order(trace: Trace, one: Device, host: Host, draft: Draft) -> None:
    """Add what the GPU work of one rank waits for: its launch, its stream, and other streams.

    The trace records that a stream was made to wait for an event, but neither which stream nor for what.
    Two rules tell:

    - Work that starts later than its launch and its own stream allow, and right after work of another stream
      ended, waited for that.
    - A wait is for the stream of the thread's next launch, and for what another stream was last given before.
      Where an event is recorded between the wait and that launch, the wait came before the record, and is for
      the stream that the next launch elsewhere goes to. Waits that the measurement contradicts are dropped.
    """
    work = trace.work
    if work.cpu_only:
        return
    lane = work.lane
    after, before = _held_up(trace, one, lane)
    draft.join(WAIT, one.finish[before], one.begin[after])
    _follow(trace, one, host.calls.begin, after, draft)
    after, before = _asked(trace, one, lane, host.thread)
    possible = work.end[before] <= work.start[after]
    draft.join(WAIT, one.finish[before[possible]], one.begin[after[possible]])


def _follow(trace: Trace, one: Device, begin: Int, held_up: Int, draft: Draft) -> None:
    """Edges from launch calls and along streams.

    Their lags are what it typically takes from a call of that name to work that nothing else holds up, and
    from work to the next one that has long been queued.
    """
    work = trace.work
    behind = np.flatnonzero(one.before >= 0)
    ahead = one.before[behind]
    gap = work.start[behind] - work.end[ahead]
    queued = one.called[behind] < work.start[ahead]
    usual = int(np.median(np.maximum(gap[queued], 0))) if queued.any() else 0
    draft.join(STREAM, one.finish[ahead], one.begin[behind], np.minimum(np.maximum(usual, 0), gap))
    launched = np.flatnonzero(one.call >= 0)
    took = work.start[launched] - one.called[launched]
    idle = np.where(one.before >= 0, work.end[np.maximum(one.before, 0)], LONG_AGO)[launched]
    # What a graph launches behind its first kernel waits for others of the graph.
    first = np.isin(np.arange(len(launched)), np.unique(one.call[launched], return_index=True)[1])
    free = first & (idle <= one.called[launched]) & (took >= 0) & ~np.isin(launched, held_up)
    name = trace.arrays.name[work.launch[launched]]
    usual = int(np.median(took[free])) if free.any() else max(int(took.min(initial=0)), 0)
    least = np.empty_like(took)
    for code in np.unique(name).tolist():
        mine = name == code
        some = mine & free
        least[mine] = np.median(took[some]) if some.any() else usual
    draft.join(LAUNCH, begin[one.call[launched]], one.begin[launched], least)


def _held_up(trace: Trace, one: Device, lane: Int) -> tuple[Int, Int]:
    """(work, what it waited for) by the first rule."""
    work = trace.work
    own_end = np.where(one.before >= 0, work.end[np.maximum(one.before, 0)], one.called)
    ready = np.maximum(one.called, own_end)
    late = np.flatnonzero((work.start - ready > _SHORT_NS) & (one.called > work.start.min() - _SOON_NS))
    best, ended = (np.full(len(late), fill, dtype=np.int64) for fill in (-1, np.iinfo(np.int64).min))
    for number in np.unique(lane).tolist():
        mine = np.flatnonzero(lane == number)
        mine = mine[np.argsort(work.end[mine], kind="stable")]
        at = np.searchsorted(work.end[mine], work.start[late], side="right") - 1
        last = mine[np.maximum(at, 0)]
        done = work.end[last]
        fits = (at >= 0) & (lane[late] != number) & (done > ready[late]) & (done > ended)
        fits &= (work.start[late] - done <= _SOON_NS) & (one.called[last] <= one.called[late])
        best[fits], ended[fits] = last[fits], done[fits]
    return late[best >= 0], best[best >= 0]


def _asked(trace: Trace, one: Device, lane: Int, thread: Int) -> tuple[Int, Int]:
    """(work, what it waits for) by the second rule."""
    events, work = trace.arrays, trace.work
    nothing = np.empty(0, dtype=np.int64)
    rows = np.flatnonzero(matching(events.names, _WAITS)[events.name] & events.where("launch"))
    known = np.flatnonzero(one.call >= 0)
    if not len(rows) or not len(known):
        return nothing, nothing
    known = known[np.argsort(one.called[known], kind="stable")]
    recorded = np.flatnonzero(matching(events.names, _RECORDS)[events.name] & events.where("launch"))
    caller = thread[work.launch[known]]
    after, before = [nothing], [nothing]
    for number in np.unique(thread[rows]).tolist():
        asked = np.sort(events.start[rows[thread[rows] == number]])
        mine = known[caller == number]
        if not len(mine):
            continue
        at = np.searchsorted(one.called[mine], asked)
        asked, at = asked[at < len(mine)], at[at < len(mine)]
        target = lane[mine[at]]
        marks = np.sort(events.start[recorded[thread[recorded] == number]])
        later = np.searchsorted(marks, one.called[mine[at]]) > np.searchsorted(marks, asked)
        for swap in (False, True):
            chosen = later == swap
            found = _pairs(known, one.called, lane, asked[chosen], target[chosen], swap)
            after.append(found[0])
            before.append(found[1])
    return np.concatenate(after), np.concatenate(before)


def _pairs(known: Int, called: Int, lane: Int, asked: Int, target: Int, swap: bool) -> tuple[Int, Int]:
    """Of each time, work launched next on the target, and last before elsewhere; swapped, the reverse."""
    after, before = (np.full(len(asked), -1, dtype=np.int64) for _ in range(2))
    for number in np.unique(target).tolist():
        on = known[lane[known] == number]
        off = known[lane[known] != number]
        late, early = (off, on) if swap else (on, off)
        rows = np.flatnonzero(target == number)
        behind = np.searchsorted(called[late], asked[rows])
        ahead = np.searchsorted(called[early], asked[rows]) - 1
        rows, behind, ahead = (one[(behind < len(late)) & (ahead >= 0)] for one in (rows, behind, ahead))
        after[rows], before[rows] = late[behind], early[ahead]
    some = (after >= 0) & (lane[np.maximum(after, 0)] != lane[np.maximum(before, 0)])
    return after[some], before[some]

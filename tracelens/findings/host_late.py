"""Gaps in the GPU's work in which nothing but the host's launching is late."""

from __future__ import annotations

import numpy as np

from tracelens.analysis.host import GAP_NS, GARBAGE, Gaps, calls, find_gaps, longest, named
from tracelens.arrays import Bool, Int, lookup
from tracelens.findings.rank_context import RankContext
from tracelens.table import codes
from tracelens.trace import Events


def gaps_of(context: RankContext) -> Gaps:
    """All gaps in the GPU work of the steps; positions are in `context.work`."""
    return find_gaps(context.work, np.array(context.window))


def host_late(context: RankContext, gaps: Gaps) -> Bool:
    """Which gaps `idle.causes` calls "host late", found without the cost of saying what the host did.

    The next work was launched after the gap began, and its thread sat neither in a blocking call nor, for
    most of the gap, in garbage collection.
    """
    events = context.trace.arrays
    launch = lookup(context.work.launch, gaps.after, -1)
    called = lookup(events.start, launch, gaps.start)
    dur = gaps.end - gaps.start
    late = (gaps.before >= 0) & (called > gaps.start) & (dur > GAP_NS)
    late_gaps = np.flatnonzero(late)
    blocking = np.flatnonzero(context.blocking)
    garbage = np.flatnonzero(named(events, GARBAGE))
    thread, (pids, tids) = codes(events.pid[launch[late_gaps]], events.tid[launch[late_gaps]])
    for number, (pid, tid) in enumerate(zip(pids.tolist(), tids.tolist(), strict=True)):
        on_thread = late_gaps[thread == number]
        start, end = gaps.start[on_thread], np.minimum(called, gaps.end)[on_thread]
        _, blocked = longest(calls(events, _on_thread(events, blocking, pid, tid)), start, end)
        _, collected = longest(calls(events, _on_thread(events, garbage, pid, tid)), start, end)
        late[on_thread[(blocked > 0) | (collected * 2 > end - start)]] = False
    return late


def _on_thread(events: Events, rows: Int, pid: int, tid: int) -> Int:
    """Those of the rows that are of one thread."""
    on_thread: Int = rows[(events.pid[rows] == pid) & (events.tid[rows] == tid)]
    return on_thread

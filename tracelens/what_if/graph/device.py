"""The GPU's part of the graph: its activities."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracelens.arrays import Int, lookup
from tracelens.trace import Trace
from tracelens.what_if.graph.gloo import starts, waited
from tracelens.what_if.graph.graph import OVERLAP_NS, Draft
from tracelens.what_if.graph.host import Host

# Activities to look back on a stream for one that does not overlap.
_BACK = 8
LONG_AGO = np.iinfo(np.int64).min // 4


class Device(NamedTuple):
    """The GPU activities of one rank, aligned with `trace.work`."""

    begin: Int  # node that starts with it, see RankPart
    finish: Int  # node that ends with it: the same, except for collectives that several ranks recorded
    called: Int  # start of its launch call, ns by the trace's own clock; LONG_AGO if unknown
    call: Int  # index of its launch call among the host's calls, -1 if not in the trace
    before: Int  # index of the previous activity on its stream, -1 for none


def device(trace: Trace, host: Host, draft: Draft) -> Device:
    """The GPU activities of one rank; in a CPU-only run, what starts and awaits collectives."""
    work, events = trace.work, trace.arrays
    on_host, count = host.work >= 0, len(work.event)
    begin = np.where(on_host, host.work, draft.count + np.arange(count))
    finish = np.where(on_host, host.work, draft.count + count + np.arange(count))
    call_of_event = np.full(len(events.start), -1, dtype=np.int64)
    call_of_event[host.calls.event] = np.arange(len(host.calls.event))
    call = lookup(call_of_event, work.launch, -1)
    called = lookup(events.start, work.launch, LONG_AGO)
    before = _before(work.lane, work.start, work.end)
    gpu = Device(begin, finish, called, call, before)
    if work.cpu_only:
        starts(trace, host.nodes, host.thread, begin, draft)
        waited(host.nodes, host.returns, finish, draft)
    return gpu


def _before(lane: Int, start: Int, end: Int) -> Int:
    """Index of the last activity of the same lane that is over when each one starts; `start` ascends."""
    order = np.lexsort((start, lane))
    behind = np.full(len(start), -1, dtype=np.int64)
    same = lane[order[1:]] == lane[order[:-1]]
    behind[order[1:][same]] = order[:-1][same]
    before = behind.copy()
    for _ in range(_BACK):
        beside = np.flatnonzero(lookup(end, before, LONG_AGO) > start + OVERLAP_NS)
        if not len(beside):
            break
        before[beside] = behind[before[beside]]
    return before

"""The GPU's part of the graph: its activities, and the calls that wait for them."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from tracelens.arrays import Bool, Int, lookup
from tracelens.trace import Trace, matching
from tracelens.what_if.graph.gloo import starts, waited
from tracelens.what_if.graph.graph import OVERLAP_NS, Draft, Edge, Node
from tracelens.what_if.graph.host import Host

_WHOLE_DEVICE = re.compile(r"^(?:cuda|hip|cu)(?:Device|Ctx)Synchronize|(?:Free|Malloc)")
# Activities to look back on a stream for one that does not overlap.
_BACK = 8
_RETURN_NS = 50_000
"""A call returns within this time of what it waited for; if it takes longer, it also did something else."""
LONG_AGO = np.iinfo(np.int64).min // 4


class Device(NamedTuple):
    """The GPU activities of one rank, aligned with `trace.work`."""

    begin: Int  # node that starts with it
    finish: Int  # node that ends with it: the same, except for collectives that several ranks recorded
    called: Int  # start of its launch call, ns by the trace's own clock; LONG_AGO if unknown
    call: Int  # index of its launch call among the host's calls, -1 if not in the trace
    before: Int  # index of the previous activity on its stream, -1 for none


def device(trace: Trace, rank: int, shift: int, shared: Bool, host: Host, draft: Draft) -> Device:
    """Add the GPU activities of one rank to the graph, and the calls that wait for them.

    `rank` is its index in the run, `shift` ns from its clock to that of the first rank, `shared` which
    activities belong to a collective that other ranks recorded too.
    """
    work, events = trace.work, trace.arrays
    begin, finish = host.work.copy(), host.work.copy()
    alone = np.flatnonzero((host.work < 0) & ~shared)
    begin[alone] = finish[alone] = draft.add(
        Node.WORK, rank, work.start[alone] + shift, dur=work.dur[alone], event=work.event[alone], work=alone
    )
    rows = np.flatnonzero(shared)
    begin[rows] = draft.add(Node.ARRIVE, rank, work.start[rows] + shift, event=work.event[rows], work=rows)
    finish[rows] = draft.add(Node.LEAVE, rank, work.end[rows] + shift, event=work.event[rows], work=rows)
    call_of_event = np.full(len(events.start), -1, dtype=np.int64)
    call_of_event[host.calls.event] = np.arange(len(host.calls.event))
    call = lookup(call_of_event, work.launch, -1)
    called = lookup(events.start, work.launch, LONG_AGO)
    before = _before(work.lane, work.start, work.end)
    gpu = Device(begin, finish, called, call, before)
    if work.cpu_only:
        starts(trace, host.nodes, host.thread, begin, draft)
        waited(host.nodes, host.returns, finish, draft)
    else:
        _return(trace, gpu, host, draft)
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


def _return(trace: Trace, gpu: Device, host: Host, draft: Draft) -> None:
    """Edges from GPU activities to the calls that wait for them.

    A blocking memcpy's call waits for its memcpy. A device-wide call waits for everything launched before.
    The trace does not say which stream or event another call waits for: of the last activity launched before
    on each stream, it is the one that ended last before the call returned.

    The host time of a call that had to wait is the shortest of all calls of its name; of one that found
    everything done, its full duration.
    """
    work, events = trace.work, trace.arrays
    waits = np.flatnonzero(host.calls.returned >= 0)
    rows, returned = host.calls.event[waits], host.calls.returned[waits]
    begun, over = events.start[rows], events.end[rows]
    whole_device = matching(events.names, _WHOLE_DEVICE)[events.name[rows]]
    copies = np.full(len(events.start), -1, dtype=np.int64)
    copies[work.launch[work.launch >= 0]] = np.flatnonzero(work.launch >= 0)
    best = copies[rows]
    is_copy, whole_device = best >= 0, whole_device & (best < 0)
    latest = lookup(work.end, best, LONG_AGO)
    lane = work.lane
    for number in np.unique(lane).tolist():
        launched = np.flatnonzero((lane == number) & (gpu.called > LONG_AGO))
        launched = launched[np.argsort(gpu.called[launched], kind="stable")]
        last_launched = np.searchsorted(gpu.called[launched], begun) - 1
        eligible = np.flatnonzero((last_launched >= 0) & ~is_copy)
        last, done = launched[last_launched[eligible]], work.end[launched[last_launched[eligible]]]
        all_ = whole_device[eligible]
        lag = np.minimum(over[eligible] - done, _RETURN_NS)
        draft.join(Edge.SYNC, gpu.finish[last[all_]], returned[eligible[all_]], lag[all_])
        better = (done <= over[eligible]) & (done > latest[eligible])
        best[eligible[better]], latest[eligible[better]] = last[better], done[better]
    resolved = np.flatnonzero((best >= 0) & ~whole_device)
    lag = np.minimum(over[resolved] - latest[resolved], _RETURN_NS)
    draft.join(Edge.SYNC, gpu.finish[best[resolved]], returned[resolved], lag)
    least = np.full(len(events.names), np.iinfo(np.int64).max)
    np.minimum.at(least, events.name[rows], over - begun)
    waited = latest > begun
    draft.join(
        Edge.HOST, host.calls.begin[waits], returned, np.where(waited, least[events.name[rows]], over - begun)
    )

"""The GPU's part of the graph: its work, and the calls that wait for it."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from tracelens.arrays import Bool, Int
from tracelens.trace import Trace, matching
from tracelens.what_if.graph.gloo import starts, waited
from tracelens.what_if.graph.graph import ARRIVE, HOST, LEAVE, OVERLAP_NS, SYNC, WORK, Draft
from tracelens.what_if.graph.host import Host

_WHOLE_DEVICE = re.compile(r"^(?:cuda|hip|cu)(?:Device|Ctx)Synchronize|(?:Free|Malloc)")
# Work is behind others of its stream by one place, unless those run beside it.
_BACK = 8
_RETURN_NS = 50_000
"""A call returns within this time of what it waited for; if it takes longer, it did something else too."""
LONG_AGO = np.iinfo(np.int64).min // 4


class Device(NamedTuple):
    """The GPU work of one rank; one element a piece of `trace.work`.

    Attributes:
        begin: node that starts with it.
        finish: node that ends with it: the same, but for collectives that are seen on several ranks.
        called: when its launch call began, ns by the trace's own clock; long ago where that is not known.
        call: place of its launch call among the host's calls, -1 if not in the trace.
        before: position of the work before it on its stream, -1 for none.
    """

    begin: Int
    finish: Int
    called: Int
    call: Int
    before: Int


def device(trace: Trace, rank: int, shift: int, shared: Bool, found: Host, draft: Draft) -> Device:
    """Add the GPU work of one rank to the graph, and who waits for it on the host.

    Args:
        trace: of the rank.
        rank: its place in the run.
        shift: from its clock to that of the first rank, ns.
        shared: which work is part of a collective that other ranks recorded too.
        found: the host.
        draft: what is added to.
    """
    work, events = trace.work, trace.arrays
    begin, finish = found.work.copy(), found.work.copy()
    alone = np.flatnonzero((found.work < 0) & ~shared)
    begin[alone] = finish[alone] = draft.add(
        WORK, rank, work.start[alone] + shift, dur=work.dur[alone], event=work.event[alone], work=alone
    )
    rows = np.flatnonzero(shared)
    begin[rows] = draft.add(ARRIVE, rank, work.start[rows] + shift, event=work.event[rows], work=rows)
    finish[rows] = draft.add(LEAVE, rank, work.end[rows] + shift, event=work.event[rows], work=rows)
    place = np.full(len(events.start), -1, dtype=np.int64)
    place[found.calls.event] = np.arange(len(found.calls.event))
    call = np.where(work.launch >= 0, place[np.maximum(work.launch, 0)], -1)
    called = np.where(work.launch >= 0, events.start[np.maximum(work.launch, 0)], LONG_AGO)
    before = _before(work.lane, work.start, work.end)
    one = Device(begin, finish, called, call, before)
    if work.cpu_only:
        starts(trace, found.nodes, found.thread, begin, draft)
        waited(found.nodes, found.returns, finish, draft)
    else:
        _return(trace, one, found, draft)
    return one


def _before(lane: Int, start: Int, end: Int) -> Int:
    """Position of the last work of the same lane that is over when each one starts; `start` ascends."""
    order = np.lexsort((start, lane))
    behind = np.full(len(start), -1, dtype=np.int64)
    same = lane[order[1:]] == lane[order[:-1]]
    behind[order[1:][same]] = order[:-1][same]
    found = behind.copy()
    for _ in range(_BACK):
        beside = np.flatnonzero((found >= 0) & (end[np.maximum(found, 0)] > start + OVERLAP_NS))
        if not len(beside):
            break
        found[beside] = behind[found[beside]]
    return found


def _return(trace: Trace, one: Device, found: Host, draft: Draft) -> None:
    """Edges from GPU work to the calls that wait for it.

    A copy that keeps its call waits for itself. A call for a whole device waits for all that was launched
    before. The trace does not say which stream or event another call waits for: of the last work of each
    stream that was launched before, it is what ended last before the call returned.

    The host's own time in a call that had to wait is the shortest of all calls of its name; that of one that
    found all done is all of it.
    """
    work, events = trace.work, trace.arrays
    waits = np.flatnonzero(found.calls.returned >= 0)
    rows, returned = found.calls.event[waits], found.calls.returned[waits]
    begun, over = events.start[rows], events.end[rows]
    whole = matching(events.names, _WHOLE_DEVICE)[events.name[rows]]
    copies = np.full(len(events.start), -1, dtype=np.int64)
    copies[work.launch[work.launch >= 0]] = np.flatnonzero(work.launch >= 0)
    best = copies[rows]
    own, whole = best >= 0, whole & (best < 0)
    latest = np.where(own, work.end[np.maximum(best, 0)], LONG_AGO)
    lane = work.lane
    for number in np.unique(lane).tolist():
        mine = np.flatnonzero((lane == number) & (one.called > LONG_AGO))
        mine = mine[np.argsort(one.called[mine], kind="stable")]
        at = np.searchsorted(one.called[mine], begun) - 1
        some = np.flatnonzero((at >= 0) & ~own)
        last, done = mine[at[some]], work.end[mine[at[some]]]
        all_ = whole[some]
        lag = np.minimum(over[some] - done, _RETURN_NS)
        draft.join(SYNC, one.finish[last[all_]], returned[some[all_]], lag[all_])
        better = (done <= over[some]) & (done > latest[some])
        best[some[better]], latest[some[better]] = last[better], done[better]
    told = np.flatnonzero((best >= 0) & ~whole)
    lag = np.minimum(over[told] - latest[told], _RETURN_NS)
    draft.join(SYNC, one.finish[best[told]], returned[told], lag)
    least = np.full(len(events.names), np.iinfo(np.int64).max)
    np.minimum.at(least, events.name[rows], over - begun)
    waited = latest > begun
    draft.join(
        HOST, found.calls.begin[waits], returned, np.where(waited, least[events.name[rows]], over - begun)
    )

"""Calls in which the host waits for the GPU, and the MoE layer and stage in which it does."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracelens.analysis.host import blocking_calls, threads
from tracelens.analysis.moe.kernel_lexer import HOST_COPY
from tracelens.analysis.moe.regions import regions
from tracelens.analysis.moe.stages import STAGES
from tracelens.analysis.moe.windows import stage_of
from tracelens.arrays import Int, lookup
from tracelens.table import nearest
from tracelens.trace import Trace, enclosing_op, matching


class Blocking(NamedTuple):
    """Blocking calls in order of time, nested ones once.

    Attributes:
        event: row of the call.
        layer_pass: pass through an MoE layer (see Regions) whose work the thread launched last, -1 for none.
        stage: code of its stage, -1 for none.
        phase: code of its phase, -1 for none.
        start: of the call, ns.
        blocked_ns: duration of the call.
        until: start of the first work that the thread launched after it, ns; the call's end if there is none.
    """

    event: Int
    layer_pass: Int
    stage: Int
    phase: Int
    start: Int
    blocked_ns: Int
    until: Int


def blocking(trace: Trace) -> Blocking:
    """The blocking calls of one rank; ask with `trace.once(blocking)`."""
    work, events = trace.work, trace.arrays
    layers = trace.once(regions)
    if not len(work.event):
        return Blocking(*(np.empty(0, dtype=np.int64) for _ in Blocking._fields))
    rows = np.flatnonzero(blocking_calls(trace, work))
    rows = rows[np.argsort(events.start[rows], kind="stable")]
    thread = threads(trace)
    # Of nested calls the outer one.
    reached = _reached(events.end[rows], thread[rows])
    rows = rows[events.end[rows] > reached]
    caller = work.host_call
    called = np.flatnonzero(caller >= 0)
    last, following = (np.full(len(rows), -1, dtype=np.int64) for _ in range(2))
    for number in np.unique(thread[rows]):
        on_thread = np.flatnonzero(thread[rows] == number)
        thread_work = called[thread[caller[called]] == number]
        thread_work = thread_work[np.argsort(events.start[caller[thread_work]], kind="stable")]
        times = events.start[caller[thread_work]]
        before = np.searchsorted(times, events.end[rows[on_thread]], side="right") - 1
        last[on_thread] = lookup(thread_work, before, -1)
        after = before + 1
        following[on_thread] = (
            np.where(after < len(thread_work), thread_work[np.minimum(after, len(thread_work) - 1)], -1)
            if len(thread_work)
            else -1
        )
    named = np.full(len(rows), -1, dtype=np.int64)
    if work.cpu_only:
        last, named = _inside(trace, rows, last, following)
    else:
        last = _waited_for(trace, rows, last, caller)
    start, end = events.start[rows], events.end[rows]
    until = np.where(following >= 0, np.maximum(work.start[following], end), end)

    def of(values: Int) -> Int:
        return lookup(values, last, -1)

    layer_pass = of(layers.layer_pass)
    stage = np.where((layer_pass >= 0) & (named >= 0), named, of(layers.stage))
    return Blocking(rows, layer_pass, stage, of(layers.phase), start, end - start, until)


def _inside(trace: Trace, rows: Int, last: Int, following: Int) -> tuple[Int, Int]:
    """The work beside each read of a host that does the work itself, and the stage that its frame names.

    There is no copy to tell by, and a part of a layer may begin with a read: then it is the work behind. The
    stage is -1 where no frame says it, and where the read is work of its own.
    """
    events, work = trace.arrays, trace.work
    names = [stage_of(name) for name in events.names]
    code = np.array([STAGES.index(name) if name else -1 for name in names], dtype=np.int64)[events.name]
    frames = nearest(events.parent, events.depth, (code >= 0) & events.where("annotation", "python"))
    frame = np.where(events.places(work.event)[rows] < 0, frames[rows], -1)
    before = (last >= 0) & (work.start[np.maximum(last, 0)] >= events.start[frame])
    after = (following >= 0) & (work.start[np.maximum(following, 0)] < events.end[frame])
    last = np.where((frame >= 0) & ~before & after, following, last)
    return last, lookup(code, frame, -1)


def _waited_for(trace: Trace, rows: Int, last: Int, caller: Int) -> Int:
    """The work that says where a blocking call belongs: its op's, else the last copy to the host.

    Sizes are often copied beside other work, and waited for when that has been launched.
    """
    work, events = trace.work, trace.arrays
    around = trace.once(enclosing_op)
    op = around[rows]
    by_own_op = (op >= 0) & (lookup(around, lookup(caller, last, -1), -1) == op)
    out = matching(work.names, HOST_COPY)
    copies = np.flatnonzero(out[work.name] & ~work.is_kernel & (caller >= 0))
    # What an op copies and waits for itself, nobody else waits for.
    copies = copies[~np.isin(around[caller[copies]], op[op >= 0])]
    copies = copies[np.argsort(events.start[caller[copies]], kind="stable")]
    if not len(copies):
        return last
    index = np.searchsorted(events.start[caller[copies]], events.end[rows], side="right") - 1
    copied = lookup(copies, index, -1)
    layer_pass = trace.once(regions).layer_pass
    beside = (
        (copied >= 0) & (last >= 0) & (layer_pass[np.maximum(copied, 0)] == layer_pass[np.maximum(last, 0)])
    )
    return np.where(beside & ~by_own_op, copied, last)


def _reached(end: Int, thread: Int) -> Int:
    """How far the calls before each one reach on its thread."""
    result = np.full(len(end), np.iinfo(np.int64).min)
    for number in np.unique(thread):
        on_thread = np.flatnonzero(thread == number)
        result[on_thread[1:]] = np.maximum.accumulate(end[on_thread])[:-1]
    return result

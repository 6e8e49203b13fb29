"""Blocking calls: the GPU work that each waits for, and what it costs when there is nothing to wait for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tracelens.analysis.host import named
from tracelens.arrays import Int, lookup
from tracelens.table import Coded
from tracelens.trace import Trace, Work, matching, rows_by_code
from tracelens.what_if.graph.device import LONG_AGO, Device
from tracelens.what_if.graph.graph import Draft, Edge
from tracelens.what_if.graph.host import Host
from tracelens.what_if.graph.queue import full_queue

DEVICE, FREE, ALLOCATION, EVENT, STREAM, COPY, QUEUE = range(7)
"""What a call waits for: all work launched before it (FREE: and then frees), nothing, the work before the
record of an event, the work launched before it on a stream, its own copy, and a launch into a full queue for
the next end of work on its stream."""

_KINDS = (
    (DEVICE, re.compile(r"^(?:cuda|hip|cu)(?:Device|Ctx)Synchronize")),
    (FREE, re.compile(r"Free")),
    (ALLOCATION, re.compile(r"Malloc|Alloc")),
    (EVENT, re.compile(r"EventSynchronize")),
)
_RECORD = re.compile(r"^(?:cuda|hip|cu)EventRecord")
_COPY = re.compile(r"emcpy")
_ASYNCHRONOUS_COPY = re.compile(r"emcpy.*Async")

SYNCHRONIZE_NS, COPY_NS = 3_500, 5_000
"""Cost of a call of which the run has no example without a wait.

Under the profiler on A100, H100 and H200, medians of 14 recordings are 2.5 to 5.6 us for stream and event
synchronization with nothing to wait for, and of 7 recordings 3.0 to 8.9 us for an asynchronous copy."""

_PROMPT_NS = 10_000
"""Synchronising a stream returns within this time of the stream's last work; later, it waited for another."""

RETURN_NS = 50_000
"""A call returns within this time of what it waited for; if it takes longer, it also did something else."""

# Records to look back for one that precedes the call.
_BACK = 8


class Waits(NamedTuple):
    """The blocking calls of one rank, in order of time; times in ns by its own clock.

    Attributes:
        begin, returned: nodes of its start and end, see RankPart.
        kind: one of DEVICE to QUEUE.
        name: of the call.
        begun, over: when the call was made, and when it returned.
        done: when the last of the work that it waits for was done, LONG_AGO if unknown.
        row, work: pairs of a blocking call (position here) and the node of what it waits for, at its end.
        work_end: when that ended.
        prompt: name of a call to how long those took that did not wait.
    """

    begin: Int
    returned: Int
    kind: Int
    name: Coded
    begun: Int
    over: Int
    done: Int
    row: Int
    work: Int
    work_end: Int
    prompt: dict[str, Int]


def waits(trace: Trace, gpu: Device, host: Host) -> Waits:
    """What each blocking call of a rank waits for.

    The trace names neither the stream nor the event of a call. The stream is that of its thread's last
    launch, if its work was done by the time the call returned, and not long before; otherwise the one whose
    work was done last before the call returned. The event is the one recorded behind the work that was done
    last before the call returned.
    """
    events, work = trace.arrays, trace.work
    call = np.flatnonzero(host.calls.returned >= 0)
    event = host.calls.event[call]
    begun, over = events.start[event], events.end[event]
    kind = _kinds(events.names)[events.name[event]]
    copies = np.full(len(events.start), -1, dtype=np.int64)
    copies[work.launch[work.launch >= 0]] = np.flatnonzero(work.launch >= 0)
    own_copy = copies[event]
    launches = np.flatnonzero(own_copy >= 0)
    stalls = trace.once(full_queue)[event[launches]] & (work.end[own_copy[launches]] > over[launches])
    kind[launches] = np.where(stalls, QUEUE, COPY)
    last, everything = _last_launched(trace, gpu, host, event, kind)
    recorded = np.flatnonzero(kind == EVENT)
    before_event = _before_record(trace, gpu, host, event[recorded])
    last[recorded] = np.where(before_event >= 0, before_event, last[recorded])
    last = np.where(kind == COPY, own_copy, last)
    into_full = np.flatnonzero(kind == QUEUE)
    last[into_full] = _last_ended(work, work.lane[own_copy[into_full]], over[into_full])
    last[np.isin(kind, (DEVICE, FREE, ALLOCATION))] = -1
    single = np.flatnonzero(last >= 0)
    row, awaited = (
        np.concatenate(column) for column in zip((single, last[single]), *everything, strict=True)
    )
    done = np.full(len(call), LONG_AGO, dtype=np.int64)
    over_before = work.end[awaited] <= over[row]
    np.maximum.at(done, row[over_before], work.end[awaited[over_before]])
    idle = (done > LONG_AGO) & (done <= begun) & (kind < COPY)
    prompt = _prompt(trace, event[idle], np.unique(events.name[event[kind == QUEUE]]))
    return Waits(
        host.calls.begin[call],
        host.calls.returned[call],
        kind,
        Coded.used(events.name[event], events.names),
        begun,
        over,
        done,
        row,
        gpu.finish[awaited],
        work.end[awaited],
        prompt,
    )


def _prompt(trace: Trace, idle: Int, stalling: Int) -> dict[str, Int]:
    """Durations of calls that did not wait, ns by name.

    Args:
        trace: of the rank.
        idle: event rows of blocking calls with nothing to wait for.
        stalling: codes of the names of launches that met a full queue.
    """
    events, work = trace.arrays, trace.work
    copies = np.flatnonzero((work.launch >= 0) & ~work.is_kernel)
    launch = work.launch[copies]
    early = named(events, _ASYNCHRONOUS_COPY)[launch] & (events.end[launch] < work.end[copies])
    calls = [idle, launch[early]]
    if len(stalling):
        launches = np.unique(work.launch[work.launch >= 0])
        stalled = np.isin(events.name[launches], stalling)
        calls.append(launches[stalled & ~trace.once(full_queue)[launches]])
    rows = np.concatenate(calls)
    dur = (events.end - events.start)[rows]
    return {events.names[code]: dur[same] for code, same in rows_by_code(events.name[rows]).items()}


def call_costs(waiting: Sequence[Waits]) -> dict[str, int]:
    """Median duration of calls that did not wait, ns by name, over all ranks of a run.

    Of a copy, those of its name that returned before the copy was done.
    """
    samples: dict[str, list[Int]] = {}
    for calls in waiting:
        for name, dur in calls.prompt.items():
            samples.setdefault(name, []).append(dur)
    return {name: int(np.median(np.concatenate(parts))) for name, parts in samples.items()}


def join_waits(calls: Waits, costs: Mapping[str, int], number_of: Int, draft: Draft) -> None:
    """Edges to the return of each blocking call: its own cost, and what it waits for.

    A call that found its work done, or whose work is not in the trace, takes its full duration. What a free
    takes after its wait is its own time.

    Args:
        calls: of one rank.
        costs: from `call_costs`.
        number_of: number in the draft of each node that the calls name.
        draft: of the run's graph.
    """
    if not len(calls.begin):
        return
    name, names = calls.name
    dur, behind = calls.over - calls.begun, calls.over - calls.done
    shortest = np.full(len(names), np.iinfo(np.int64).max)
    np.minimum.at(shortest, name, dur)
    default = [COPY_NS if _COPY.search(name) else SYNCHRONIZE_NS for name in names]
    known = np.array([costs.get(name, -1) for name in names])
    # With its wait, no call of the name took less than it costs.
    typical = np.where(known >= 0, known, np.minimum(default, shortest))
    waited = calls.done > calls.begun
    cost = np.where(waited, np.where(calls.kind == FREE, behind, typical[name]), dur)
    returned = number_of[calls.returned]
    draft.join(Edge.HOST, number_of[calls.begin], returned, cost)
    back = np.where(waited, np.minimum(behind, RETURN_NS), typical[name])
    back = np.where(calls.kind == FREE, cost, back)
    lag = np.minimum(calls.over[calls.row] - calls.work_end, back[calls.row])
    kind = np.where(calls.kind == QUEUE, Edge.QUEUE, Edge.SYNC)[calls.row]
    draft.join(kind, number_of[calls.work], returned[calls.row], lag)


def _last_ended(work: Work, lane: Int, before: Int) -> Int:
    """The last work that ended on each of these streams before a time, -1 for none."""
    last = np.full(len(lane), -1, dtype=np.int64)
    of_lane = rows_by_code(work.lane) if len(lane) else {}
    for number, rows in rows_by_code(lane).items():
        own = of_lane[number][np.argsort(work.end[of_lane[number]], kind="stable")]
        last[rows] = lookup(own, np.searchsorted(work.end[own], before[rows], side="right") - 1, -1)
    return last


def _kinds(names: Sequence[str]) -> Int:
    """The kind of each name; STREAM for all that is none of the others."""
    kinds = np.full(len(names), STREAM, dtype=np.int64)
    for kind, pattern in reversed(_KINDS):
        kinds[matching(names, pattern)] = kind
    return kinds


def _last_launched(
    trace: Trace, gpu: Device, host: Host, event: Int, kind: Int
) -> tuple[Int, list[tuple[Int, Int]]]:
    """Of each call the last work launched before it on its stream, -1 for none, by the rule of `waits`.

    And (call, work) for device-wide calls: the last work launched before it on each stream.
    """
    events, work = trace.arrays, trace.work
    begun, over = events.start[event], events.end[event]
    whole_device = (kind == DEVICE) | (kind == FREE)
    own_lane = _lane_of_thread(trace, gpu, host, event)
    best, own = (np.full(len(event), -1, dtype=np.int64) for _ in range(2))
    latest = np.full(len(event), LONG_AGO, dtype=np.int64)
    pairs = []
    for lane, rows in rows_by_code(work.lane).items():
        called = gpu.called[rows]
        if (unknown := called == LONG_AGO).any():
            # Launched before it started; before the first launch on its stream, before the recording began.
            early = np.arange(len(rows)) < (np.argmin(unknown) if not unknown.all() else 0)
            called = np.where(unknown & ~early, work.start[rows], called)
        by_call = np.argsort(called, kind="stable")
        launched, called = rows[by_call], called[by_call]
        before = np.searchsorted(called, begun) - 1
        eligible = np.flatnonzero(before >= 0)
        last = launched[before[eligible]]
        device = whole_device[eligible]
        pairs.append((eligible[device], last[device]))
        done = work.end[last]
        possible = done <= over[eligible]
        better = possible & (done > latest[eligible])
        best[eligible[better]], latest[eligible[better]] = last[better], done[better]
        since = over[eligible] - np.maximum(done, begun[eligible])
        mine = possible & (own_lane[eligible] == lane) & (since <= _PROMPT_NS)
        own[eligible[mine]] = last[mine]
    return np.where(own >= 0, own, best), pairs


def _lane_of_thread(trace: Trace, gpu: Device, host: Host, event: Int) -> Int:
    """The stream of the last launch before each of these calls on its thread, -1 for none."""
    launch = _launch_before(trace, gpu, host, event)
    return lookup(trace.work.lane, launch, -1)


def _launch_before(trace: Trace, gpu: Device, host: Host, event: Int) -> Int:
    """The last work launched before each of these calls by its own thread, -1 for none."""
    events, work = trace.arrays, trace.work
    launched = np.full(len(event), -1, dtype=np.int64)
    known = np.flatnonzero(gpu.call >= 0)
    known = known[np.argsort(gpu.called[known], kind="stable")]
    of_thread = rows_by_code(host.thread[work.launch[known]])
    for number, rows in rows_by_code(host.thread[event]).items():
        own = known[of_thread.get(number, known[:0])]
        before = np.searchsorted(gpu.called[own], events.start[event[rows]]) - 1
        launched[rows] = lookup(own, before, -1)
    return launched


def _before_record(trace: Trace, gpu: Device, host: Host, event: Int) -> Int:
    """The work before the record of each call's event, by the rule of `waits`; -1 for none."""
    events, work = trace.arrays, trace.work
    marked = np.full(len(event), -1, dtype=np.int64)
    records = np.flatnonzero(named(events, _RECORD) & events.where("launch")) if len(event) else marked
    before = _launch_before(trace, gpu, host, records)
    records, before = records[before >= 0], before[before >= 0]
    order = np.argsort(work.end[before], kind="stable")
    records, before = records[order], before[order]
    last = np.searchsorted(work.end[before], events.end[event], side="right") - 1
    for _ in range(_BACK):
        late = (last >= 0) & (lookup(events.start[records], last, LONG_AGO) >= events.start[event])
        if not late.any():
            break
        last[late] -= 1
    valid = (last >= 0) & (lookup(events.start[records], last, 0) < events.start[event])
    marked[valid] = before[last[valid]]
    return marked

"""The GPU's part of the graph: its activities, what each waits for, and which host calls wait for them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from tracelens.arrays import Int, lookup, median, ordered, unique
from tracelens.table import Coded
from tracelens.trace import Trace, fitting, rows_by_code
from tracelens.what_if.graph.graph import Draft, Edge
from tracelens.what_if.graph.host import RankHost, full_queue, starts
from tracelens.what_if.thresholds import (
    COPY_NS,
    OVERLAP_NS,
    PROMPT_NS,
    RETURN_NS,
    SHORT_NS,
    SOON_NS,
    SYNCHRONIZE_NS,
)

# Activities to look back on a stream for one that does not overlap.
_BACK = 8
LONG_AGO = np.iinfo(np.int64).min // 4


class GpuActivities(Struct, frozen=True):
    """The GPU activities of one rank, aligned with `trace.work`."""

    begin: Int  # node that starts with it, see RankPart
    finish: Int  # node that ends with it: the same, except for collectives that several ranks recorded
    called: Int  # start of its launch call, ns by the trace's own clock; LONG_AGO if unknown
    call: Int  # index of its launch call among the host's calls, -1 if not in the trace
    before: Int  # index of the previous activity on its stream, -1 for none


_WAITS = re.compile(r"^(?:cuda|hip|cu)StreamWaitEvent")
_RECORDS = re.compile(r"^(?:cuda|hip|cu)EventRecord")

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
_COPY = re.compile(r"emcpy")
_ASYNCHRONOUS_COPY = re.compile(r"emcpy.*Async")
# Records to look back for one that precedes the call.
_RECORDS_BACK = 8


class BlockingWaits(Struct, frozen=True):
    """The blocking calls of one rank, in order of time; times in ns by its own clock."""

    begin: Int  # node of its start, see RankPart
    returned: Int  # node of its end
    kind: Int  # one of DEVICE to QUEUE
    name: Coded  # of the call
    begun: Int  # when the call was made
    over: Int  # when it returned
    done: Int  # when the last of the work that it waits for was done, LONG_AGO if unknown
    # Pairs of a blocking call and what it waits for:
    row: Int  # position of the call here
    work: Int  # node at the end of what it waits for
    work_end: Int  # when that ended
    prompt: dict[str, Int]  # name of a call to how long those took that did not wait


def device(trace: Trace, host: RankHost, draft: Draft) -> GpuActivities:
    """The GPU activities of one rank; in a CPU-only run, what starts and awaits collectives."""
    work, events = trace.work, trace.arrays
    on_host, count = host.work >= 0, len(work.event)
    begin = np.where(on_host, host.work, draft.count + np.arange(count))
    finish = np.where(on_host, host.work, draft.count + count + np.arange(count))
    call_of_event = np.full(len(events.start), -1, dtype=np.int64)
    call_of_event[host.calls.event] = np.arange(len(host.calls.event))
    call = lookup(call_of_event, work.launch, -1)
    called = lookup(events.start, work.launch, LONG_AGO)
    # The last activity of the same stream that is over when each one starts.
    lane = work.lane
    order = ordered(lane, work.start)
    same = lane[order[1:]] == lane[order[:-1]]
    behind = np.full(count, -1, dtype=np.int64)
    behind[order[1:][same]] = order[:-1][same]
    before = behind.copy()
    for _ in range(_BACK):
        overlapping = np.flatnonzero(lookup(work.end, before, LONG_AGO) > work.start + OVERLAP_NS)
        if not len(overlapping):
            break
        before[overlapping] = behind[before[overlapping]]
    gpu = GpuActivities(begin, finish, called, call, before)
    if work.cpu_only:
        starts(trace, host.nodes, host.thread, begin, draft)
        for number, wait in host.returns.items():
            draft.join(Edge.SYNC, finish[wait.work], host.nodes[number].node[wait.after], wait.lag)
    return gpu


def order(trace: Trace, device: GpuActivities, host: RankHost, draft: Draft) -> None:
    """Add what the GPU activities of one rank wait for: their launch, their stream, and other streams.

    Lags from launch calls and along streams are the median time from a call of that name to an activity that
    nothing else holds up, and from an activity to the next one already queued.

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
    # The first rule.
    ready = np.maximum(device.called, lookup(work.end, device.before, device.called))
    late = np.flatnonzero((work.start - ready > SHORT_NS) & (device.called > work.start.min() - SOON_NS))
    cause, ended = (np.full(len(late), fill, dtype=np.int64) for fill in (-1, np.iinfo(np.int64).min))
    lane = work.lane
    for stream in unique(lane).tolist():
        on_stream = np.flatnonzero(lane == stream)
        on_stream = on_stream[np.argsort(work.end[on_stream], kind="stable")]
        last_ended = np.searchsorted(work.end[on_stream], work.start[late], side="right") - 1
        last = on_stream[np.maximum(last_ended, 0)]
        done = work.end[last]
        fits = (last_ended >= 0) & (lane[late] != stream) & (done > ready[late]) & (done > ended)
        fits &= (work.start[late] - done <= SOON_NS) & (device.called[last] <= device.called[late])
        cause[fits], ended[fits] = last[fits], done[fits]
    held_up = late[cause >= 0]
    draft.join(Edge.WAIT, device.finish[cause[cause >= 0]], device.begin[held_up])

    behind = np.flatnonzero(device.before >= 0)
    ahead = device.before[behind]
    gap = work.start[behind] - work.end[ahead]
    queued = device.called[behind] < work.start[ahead]
    usual = int(median(np.maximum(gap[queued], 0))) if queued.any() else 0
    draft.join(Edge.STREAM, device.finish[ahead], device.begin[behind], np.minimum(np.maximum(usual, 0), gap))

    after, before = _stream_waits(trace, device, host.thread)
    possible = work.end[before] <= work.start[after]
    draft.join(Edge.WAIT, device.finish[before[possible]], device.begin[after[possible]])

    launched = np.flatnonzero(device.call >= 0)
    launch_ns = work.start[launched] - device.called[launched]
    idle = lookup(work.end, device.before, LONG_AGO)[launched]
    # Kernels of a graph after its first wait for others of the graph.
    first = np.isin(np.arange(len(launched)), np.unique(device.call[launched], return_index=True)[1])
    waited = np.concatenate((held_up, after))
    free = first & (idle <= device.called[launched]) & (launch_ns >= 0) & ~np.isin(launched, waited)
    name = trace.arrays.name[work.launch[launched]]
    usual = int(median(launch_ns[free])) if free.any() else max(int(launch_ns.min(initial=0)), 0)
    least = np.empty_like(launch_ns)
    for code in unique(name).tolist():
        same_call = name == code
        free_same = same_call & free
        least[same_call] = median(launch_ns[free_same]) if free_same.any() else usual
    draft.join(Edge.LAUNCH, host.calls.begin[device.call[launched]], device.begin[launched], least)


def _stream_waits(trace: Trace, device: GpuActivities, thread: Int) -> tuple[Int, Int]:
    """(activity, what it waits for) by the second rule of `order`."""
    events, work = trace.arrays, trace.work
    nothing = np.empty(0, dtype=np.int64)
    rows = np.flatnonzero(events.fitting(_WAITS, "launch"))
    known = np.flatnonzero(device.call >= 0)
    if not len(rows) or not len(known):
        return nothing, nothing
    known = known[np.argsort(device.called[known], kind="stable")]
    recorded = np.flatnonzero(events.fitting(_RECORDS, "launch"))
    caller, stream = thread[work.launch[known]], work.lane[known]
    after, before = [nothing], [nothing]
    for number in unique(thread[rows]).tolist():
        wait_ns = np.sort(events.start[rows[thread[rows] == number]])
        launched = known[caller == number]
        if not len(launched):
            continue
        next_launch = np.searchsorted(device.called[launched], wait_ns)
        wait_ns, next_launch = wait_ns[next_launch < len(launched)], next_launch[next_launch < len(launched)]
        target = work.lane[launched[next_launch]]
        marks = np.sort(events.start[recorded[thread[recorded] == number]])
        swapped = np.searchsorted(marks, device.called[launched[next_launch]]) > np.searchsorted(
            marks, wait_ns
        )
        for swap in (False, True):
            waits, targets = wait_ns[swapped == swap], target[swapped == swap]
            # Of each wait, the next launch on the target and the last one elsewhere before; or the reverse.
            waiting, awaited = (np.full(len(waits), -1, dtype=np.int64) for _ in range(2))
            for lane in unique(targets).tolist():
                on, off = known[stream == lane], known[stream != lane]
                late, early = (off, on) if swap else (on, off)
                own = np.flatnonzero(targets == lane)
                behind = np.searchsorted(device.called[late], waits[own])
                ahead = np.searchsorted(device.called[early], waits[own]) - 1
                both = (behind < len(late)) & (ahead >= 0)
                waiting[own[both]], awaited[own[both]] = late[behind[both]], early[ahead[both]]
            apart = (waiting >= 0) & (work.lane[waiting] != work.lane[awaited])
            after.append(waiting[apart])
            before.append(awaited[apart])
    return np.concatenate(after), np.concatenate(before)


def waits(trace: Trace, gpu: GpuActivities, host: RankHost) -> BlockingWaits:
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
    kind = np.full(len(event), STREAM, dtype=np.int64)
    for code, pattern in reversed(_KINDS):
        kind[fitting(events.names, events.name[event], pattern)] = code
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
    # A full queue has room when the last work that ended on the stream before the return has ended.
    into_full = np.flatnonzero(kind == QUEUE)
    of_lane = rows_by_code(work.lane) if len(into_full) else {}
    for lane, rows in rows_by_code(work.lane[own_copy[into_full]]).items():
        stalled = into_full[rows]
        own = of_lane[lane][np.argsort(work.end[of_lane[lane]], kind="stable")]
        last[stalled] = lookup(own, np.searchsorted(work.end[own], over[stalled], side="right") - 1, -1)
    last[np.isin(kind, (DEVICE, FREE, ALLOCATION))] = -1
    single = np.flatnonzero(last >= 0)
    row, awaited = (
        np.concatenate(column) for column in zip((single, last[single]), *everything, strict=True)
    )
    done = np.full(len(call), LONG_AGO, dtype=np.int64)
    over_before = work.end[awaited] <= over[row]
    np.maximum.at(done, row[over_before], work.end[awaited[over_before]])
    idle = (done > LONG_AGO) & (done <= begun) & (kind < COPY)
    # Calls that did not wait: blocking ones with nothing to wait for, copies that return before they are
    # done, and launches of names of which others met a full queue.
    copied = np.flatnonzero((work.launch >= 0) & ~work.is_kernel)
    launch = work.launch[copied]
    early = events.fitting(_ASYNCHRONOUS_COPY, "launch")[launch] & (events.end[launch] < work.end[copied])
    did_not_wait = [event[idle], launch[early]]
    stalling = unique(events.name[event[kind == QUEUE]])
    if len(stalling):
        launch = unique(work.launch[work.launch >= 0])
        same_name = np.isin(events.name[launch], stalling)
        did_not_wait.append(launch[same_name & ~trace.once(full_queue)[launch]])
    rows = np.concatenate(did_not_wait)
    dur = (events.end - events.start)[rows]
    prompt = {events.names[code]: dur[same] for code, same in rows_by_code(events.name[rows]).items()}
    return BlockingWaits(
        begin=host.calls.begin[call],
        returned=host.calls.returned[call],
        kind=kind,
        name=Coded.used(events.name[event], events.names),
        begun=begun,
        over=over,
        done=done,
        row=row,
        work=gpu.finish[awaited],
        work_end=work.end[awaited],
        prompt=prompt,
    )


def call_costs(waiting: Sequence[BlockingWaits]) -> dict[str, int]:
    """Median duration of calls that did not wait, ns by name, over all ranks of a run.

    Of a copy, those of its name that returned before the copy was done.
    """
    samples: dict[str, list[Int]] = {}
    for calls in waiting:
        for name, dur in calls.prompt.items():
            samples.setdefault(name, []).append(dur)
    return {name: int(median(np.concatenate(parts))) for name, parts in samples.items()}


def join_waits(calls: BlockingWaits, costs: Mapping[str, int], number_of: Int, draft: Draft) -> None:
    """Edges to the return of each blocking call of a rank: its own cost, and what it waits for.

    A call that found its work done, or whose work is not in the trace, takes its full duration. What a free
    takes after its wait is its own time. `costs` is from `call_costs`, `number_of` the number in the draft of
    each node that the calls name.
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


def _last_launched(
    trace: Trace, gpu: GpuActivities, host: RankHost, event: Int, kind: Int
) -> tuple[Int, list[tuple[Int, Int]]]:
    """Of each call the last work launched before it on its stream, -1 for none, by the rule of `waits`.

    And (call, work) for device-wide calls: the last work launched before it on each stream.
    """
    events, work = trace.arrays, trace.work
    begun, over = events.start[event], events.end[event]
    whole_device = (kind == DEVICE) | (kind == FREE)
    own_lane = lookup(work.lane, _launch_before(trace, gpu, host, event), -1)
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
        mine = possible & (own_lane[eligible] == lane) & (since <= PROMPT_NS)
        own[eligible[mine]] = last[mine]
    return np.where(own >= 0, own, best), pairs


def _launch_before(trace: Trace, gpu: GpuActivities, host: RankHost, event: Int) -> Int:
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


def _before_record(trace: Trace, gpu: GpuActivities, host: RankHost, event: Int) -> Int:
    """The work before the record of each call's event, by the rule of `waits`; -1 for none."""
    events, work = trace.arrays, trace.work
    marked = np.full(len(event), -1, dtype=np.int64)
    records = np.flatnonzero(events.fitting(_RECORDS, "launch")) if len(event) else marked
    before = _launch_before(trace, gpu, host, records)
    records, before = records[before >= 0], before[before >= 0]
    order = np.argsort(work.end[before], kind="stable")
    records, before = records[order], before[order]
    last = np.searchsorted(work.end[before], events.end[event], side="right") - 1
    for _ in range(_RECORDS_BACK):
        late = (last >= 0) & (lookup(events.start[records], last, LONG_AGO) >= events.start[event])
        if not late.any():
            break
        last[late] -= 1
    valid = (last >= 0) & (lookup(events.start[records], last, 0) < events.start[event])
    marked[valid] = before[last[valid]]
    return marked

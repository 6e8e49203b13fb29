"""What speaks against the recording of one rank: steps, launches, clocks, idle time and graph replays.

Steps are compared only where the others agree with each other, and their kernels only where the host did the
same in them: the steps of a training run differ by less than 1% in both, while those of serving may differ as
they like.

Calls and GPU work share a correlation id, and the profiler numbers calls in the order in which they are made.
In 375,000 launches of 156 undamaged traces no kernel launched during the recording lacks its call, and no
call lacks its kernel but those of memsets of no byte and those made while a graph was captured.

In the undamaged traces all kernels begin at least 3.7 us after their launch call, each stream runs in the
order of its launch calls, kernels of a stream overlap by at most 13 us, and hosts that waited for the GPU go
on at most 8 us before its work ends.

A GPU starts queued work within microseconds: the longest such gap in the undamaged traces is 84 us, and 16 us
next to a graph's replay; hosts wait up to 42 us for an idle GPU. Where another process shares the GPU, its
time slices show as gaps of 1 to 2.5 ms, which are real. Work that the profiler did not record, such as nodes
of a graph, leaves holes of any length.

All replays of a graph run the same nodes. Which graph a call replays is not recorded, so two replays are of
one graph where one lacks kernels of the other in its middle. A graph that only begins later or ends earlier,
as the first and the last piece of a model do, lacks none there: it is damaged where it is the only one of its
kind and stands between the same replays as one of its siblings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

import numpy as np

from tracelens.analysis.completeness.doubts import (
    DEVICE_SYNCS,
    GRAPH_CALLS,
    SYNCS,
    Doubt,
    Recording,
    milliseconds,
    over,
)
from tracelens.arrays import Bool, Float, Int, lookup
from tracelens.table import codes
from tracelens.trace import STEP_MARK, Union, difference, matching, rows_by_code, union

SHORT_STEP_SHARE = 0.75
"""A step with fewer kernels than this share of its siblings' median is short."""
ALIKE_SHARE = 0.9
"""Counts within this ratio of each other are alike."""
STUB_STEP_SHARE = 0.1
"""A mark shorter than this share of its siblings' is only the beginning of a step."""
OUTSIDE_STEPS_SHARE = 0.01
"""More than this share of the launch calls outside of all steps are those of a step without its mark."""
QUEUED_BEFORE_SHARE = 0.05
"""Up to this share of GPU time, work that was queued before the recording began is ordinary."""
BEGIN, END = "Iteration Start: ", "Record Window End"
"""What Kineto's marks of the recorded time are called."""
ENOUGH_CALLS = 20
"""Launch calls of a recording, or ops of a step, of which a part is told from the whole."""
LEAST_STREAM_WORK = 5
"""Pieces of work that a stream must have in each other step."""

FEW_RECORDS, LOST_SHARE = 2, 0.0005
"""Up to so many, and up to this share, may be lost without a doubt."""
ORPHAN_TIME_SHARE = 0.5
"""Up to 32% of the GPU time of undamaged recordings was launched before they began; beyond this share of it
nothing can be attributed."""
_NEVER = np.iinfo(np.int64).max

CLOCK_TOLERANCE_NS = 1_000
"""Resolution of old traces."""
AFTER_SYNC_NS = 100_000
OVERLAP_NS = 1_000_000
OVERLAP_SHARE = 0.01
DISORDER_SHARE = 0.002
CROWDED_SHARE = 0.05
"""So many overlap only where the clock is wrong; corrupt durations are those of single kernels."""
LONG_RATIO, LEAST_NAMESAKES = 3, 5
"""Undamaged work that overlaps what follows in a graph takes up to 1.3 times the median of its name."""
_CLIPPED = "GPU work overrunning the next on its stream"

HOLE_AT_GRAPH_NS = 100_000
"""Next to a graph's replay, no queued work waits as long."""
HOLE_ELSEWHERE_NS = 5_000_000
"""Longer than the time slice of another process."""
WAIT_AT_END_NS = 1_000_000
"""In undamaged traces no host waits for as long once the last work has ended."""
HOLE_SHARE = 0.005
"""Holes of less than this share of the recorded time are no doubt."""
_TO_HOST = re.compile(r"DtoH|DeviceToHost|DEVICE_TO_HOST")

MOST_REPLAY_KINDS = 400
"""Different replays that are compared; so many differ only where nearly all are damaged or none is."""
LEAST_SIBLING_REPLAYS = 3
"""So many equal replays tell that one which begins later or ends earlier should be like them."""
SAME_GRAPH_SHARE = 0.25
"""A replay with less than this of another's kernels is of another graph."""


class _Replays(NamedTuple):
    """Replays by what ran in them."""

    call: Int  # event row of each replay's launch call, in the order in which they ran
    kind: Int  # of each replay, the position of its kernels in the lists below
    names: list[Int]  # name codes of each kind's kernels, in order of start


def steps(recording: Recording) -> Iterator[Doubt]:
    """Doubts about single steps, from the counts of each."""
    marked = recording.steps
    if not len(recording.work.event):
        return
    yield from _one_sided(recording)
    if not marked.marked:
        yield from _begun_before(recording)
        return
    whole = np.array(marked.whole)
    kernels = np.bincount(marked.of_work, minlength=len(marked.labels))[whole]
    recorded_ops = recording.events.where("op") & ~recording.events.copied
    ops = _begun(recording, recorded_ops, marked.marks)[whole]
    yield from chain(
        _short(recording, whole, kernels, ops),
        _streams(recording, whole, ops),
        _cut(recording, whole, kernels, ops),
        _outside(recording),
    )


def _short(recording: Recording, whole: Int, kernels: Int, ops: Int) -> Iterator[Doubt]:
    median, alike = _siblings(kernels)
    op_median, op_alike = _siblings(ops)
    short = (
        alike
        & op_alike
        & (kernels < SHORT_STEP_SHARE * median)
        & (ops >= ALIKE_SHARE * op_median)
        & (ops > 0)
    )
    if not short.any():
        return
    rows = np.flatnonzero(short)
    first = rows[0]
    yield Doubt(
        "short step",
        len(rows),
        f"{recording.steps.labels[whole[first]]} has {kernels[first]:,} kernels, the other steps have "
        f"{median[first]:,.0f}, although the host ran as many ops",
        over(recording.steps.edges[whole[rows]], recording.steps.edges[whole[rows] + 1]),
    )


def _streams(recording: Recording, whole: Int, ops: Int) -> Iterator[Doubt]:
    """Streams that have work in all steps but the last ones, in which the host did the same."""
    work, marked = recording.work, recording.steps
    lane, (lanes,) = codes(work.lane)
    count = np.zeros((len(lanes), len(marked.labels)), dtype=np.int64)
    np.add.at(count, (lane, marked.of_work), 1)
    count = count[:, whole]
    _, op_alike = _siblings(ops)
    if len(whole) < 2 or not op_alike.all() or ops.min() < ALIKE_SHARE * ops.max():
        return
    ended = (count[:, -1] == 0) & (count[:, :-1].min(axis=1) >= LEAST_STREAM_WORK)
    if ended.any():
        rows = np.flatnonzero(np.isin(lane, np.flatnonzero(ended)))
        last = int(work.end[rows].max())
        streams = ", ".join(map(str, np.unique(work.stream[rows])))
        label = marked.labels[whole[-1]]
        yield Doubt(
            "ends early",
            int(ended.sum()),
            f"stream {streams} has no work in {label}, but at least {int(count[ended, :-1].min()):,} "
            "kernels or copies in each earlier step, although the host ran as many ops",
            over([last], [max(int(work.end.max()), last)]),
        )


def _cut(recording: Recording, whole: Int, kernels: Int, ops: Int) -> Iterator[Doubt]:
    """A first or last step of which only a part is recorded."""
    marked, events = recording.steps, recording.events
    if len(whole) < 2:
        return
    length = np.diff(marked.marks)[whole]
    median, alike = _siblings(ops)
    length_median, _ = _siblings(length)
    others = events.start[~matching(events.names, STEP_MARK)[events.name]]
    open_end = not (others >= int(marked.marks[whole[-1] + 1])).any()
    open_begin = not (others < int(marked.marks[whole[0]])).any()
    inner = float(np.median(ops[1:-1])) if len(ops) > 2 else 0.0
    for row, is_open in ((0, open_begin), (len(whole) - 1, open_end)):
        usual = max(inner, float(median[row]))
        part = (
            is_open
            and usual >= ENOUGH_CALLS
            and (ops[row] < ALIKE_SHARE * inner or (alike[row] and ops[row] < ALIKE_SHARE * median[row]))
        )
        begun = kernels[row] == 0 and length[row] < STUB_STEP_SHARE * length_median[row]
        if part or begun:
            label = marked.labels[whole[row]]
            share = f"{ops[row]:,} ops on the host, other steps have {usual:,.0f}"
            brief = f"takes {milliseconds(int(length[row]))} on the host and has no GPU work"
            yield Doubt(
                "cut",
                1,
                f"{label} is incomplete: {brief if begun else f'it has {share}'}",
                over([int(marked.edges[whole[row]])], [int(marked.edges[whole[row] + 1])]),
            )


def _outside(recording: Recording) -> Iterator[Doubt]:
    """Launch calls before the first or after the last step: of steps whose marks are not recorded."""
    events = recording.events
    marks = np.flatnonzero(matching(events.names, STEP_MARK)[events.name] & events.where("annotation"))
    calls = recording.launch_calls
    start = events.start[calls]
    first, last = int(events.start[marks].min()), int(events.end[marks].max())
    outside = (start < first) | (start > last)
    if material(int(outside.sum()), len(calls)) and outside.mean() > OUTSIDE_STEPS_SHARE:
        begin, end = int(start[outside].min()), int(start[outside].max())
        before = int((start < first).sum())
        yield Doubt(
            "cut",
            int(outside.sum()),
            f"{before:,} of {len(calls):,} launch calls come before the first step mark and "
            f"{int(outside.sum()) - before:,} after the last: the marks of their steps are not recorded",
            over(
                [begin, max(last, begin)] if before else [last], [first, max(end, last)] if before else [end]
            ),
        )


def _one_sided(recording: Recording) -> Iterator[Doubt]:
    """A recording of which the profiler's own begin or end is missing, but not the other.

    Kineto marks begin and end of what it recorded and closes with a call that waits for the GPU. Without any
    of these, somebody took the steps out of the trace, which leaves them whole.
    """
    work, events = recording.work, recording.events
    calls = recording.launch_calls
    if len(calls) < ENOUGH_CALLS:
        return
    begins, ends = (any(name.startswith(mark) for name in events.names) for mark in (BEGIN, END))
    waits = events.start[recording.called(DEVICE_SYNCS)]
    closed = bool((waits > int(events.start[calls[-1]])).any())
    if (begins or not ends) and (closed or not begins):
        return
    edges = recording.steps.edges
    at_end = begins
    low, high = (int(edges[-2]), int(edges[-1])) if at_end else (int(edges[0]), int(edges[1]))
    missing = "the profiler's closing call" if at_end else "the profiler's start mark"
    yield Doubt(
        "cut",
        1,
        f"the recording lacks {missing}: its {'last' if at_end else 'first'} step may be incomplete, or "
        "steps are missing",
        over([low], [min(high, int(work.end.max()))]),
    )


def _begun_before(recording: Recording) -> Iterator[Doubt]:
    """Without step marks, work that was launched before the recording began counts as well."""
    work = recording.work
    linked = work.launch >= 0
    ids = recording.correlation[work.event]
    early = ~linked & (ids > 0) & (ids < recording.first_call_id)
    early_ns, total = int(work.dur[early].sum()), int(work.dur.sum())
    # Beyond ORPHAN_TIME_SHARE the check of launches says it, with step marks, too.
    considerable = QUEUED_BEFORE_SHARE * total < early_ns <= ORPHAN_TIME_SHARE * total
    if linked.any() and considerable and material(int(early.sum()), len(early)):
        yield Doubt(
            "cut",
            int(early.sum()),
            f"{int(early.sum()):,} kernels and copies, {early_ns / total:.0%} of the GPU time, were "
            "launched before the recording began, and no step mark separates them from the rest",
            over(work.start[early], work.end[early]),
        )


def _begun(recording: Recording, mask: Bool, marks: Int) -> Int:
    """Number of events under a mask that begin in each host window."""
    window = np.searchsorted(marks, recording.events.start[mask], side="right") - 1
    inside = (window >= 0) & (window < len(marks) - 1)
    return np.bincount(window[inside], minlength=len(marks) - 1).astype(np.int64)


def _siblings(counts: Int) -> tuple[Float, Bool]:
    """Of each step, the median of the others, and whether these agree with each other."""
    if len(counts) < 2:
        return counts.astype(float), np.zeros(len(counts), dtype=bool)
    order = np.argsort(counts, kind="stable")
    ordered = counts[order]
    position = np.empty(len(counts), dtype=np.int64)
    position[order] = np.arange(len(counts))

    def other(rank: int) -> Int:
        """The count of this rank among the others, by size."""
        count: Int = ordered[rank + (position <= rank)]
        return count

    last = len(counts) - 2
    alike: Bool = other(0) >= ALIKE_SHARE * other(last)
    return (other(last // 2) + other((last + 1) // 2)) / 2, alike


def material(count: int, total: int) -> bool:
    """Whether as many of a total matter."""
    return count > max(FEW_RECORDS, LOST_SHARE * total)


def missing_kernels(recording: Recording) -> Iterator[Doubt]:
    """Launch calls whose kernels are not recorded, in the middle of the recording and at its end."""
    calls, events = recording.launch_calls, recording.events
    lost = calls[~recording.has_work[calls]]
    if not len(lost):
        return
    is_graph = recording.called(GRAPH_CALLS)[lost]
    last_launch = int(recording.launched.max(initial=-1))
    after_all = (events.start[lost] > last_launch) & (last_launch >= 0)
    unfinished = after_all & ~_waited_for(recording, lost)
    eager = lost[~is_graph & ~unfinished]
    # Old ROCm gives some kernels, such as RCCL's, no correlation id: any of these calls may be theirs.
    nobodys = int(((recording.correlation[recording.work.event] <= 0) & (recording.work.launch < 0)).sum())
    if material(len(eager) - nobodys, len(calls)):
        at_end = int((after_all & ~unfinished & ~is_graph).sum())
        tail = f"; {at_end:,} of them after the last recorded kernel" if at_end else ""
        yield Doubt(
            "missing kernels",
            len(eager),
            f"{len(eager):,} of {len(calls):,} launch calls have no kernel or copy "
            f"({_names(recording, eager)}){tail}",
            _between(recording, eager),
        )
    graphs = lost[is_graph & ~unfinished]
    if len(graphs):
        yield Doubt(
            "missing graph kernels",
            len(graphs),
            f"{len(graphs):,} graph launches have no kernel",
            _between(recording, graphs),
        )
    open_calls = lost[unfinished]
    if material(len(open_calls), len(calls)):
        first = int(events.start[open_calls].min())
        yield Doubt(
            "cut",
            len(open_calls),
            f"the recording ends while the GPU lags behind the host: the last {len(open_calls):,} launch "
            f"calls ({milliseconds(recording.end - first)}) have no kernel",
            over([min(first, int(recording.work.end.max(initial=first)))], [recording.end]),
        )


def missing_launches(recording: Recording) -> Iterator[Doubt]:
    """Kernels whose calls are not recorded: launched during the recording, or most of all.

    The profiler records the calls of the runtime even where it records nothing else of the host.
    """
    work = recording.work
    ids = recording.correlation[work.event]
    orphan = (work.launch < 0) & (ids > 0)
    begun = ids > recording.first_call_id
    total = max(int(work.dur.sum()), 1)
    most = int(work.dur[orphan].sum()) > ORPHAN_TIME_SHARE * total
    if not most and not recording.events.where("op").any():
        return
    lost = orphan if most else orphan & begun
    count = int(lost.sum())
    if not material(count, len(work.event)):
        return
    queued = bool(recording.is_call.any()) and not begun[lost].any()
    when = ", although they were launched during the recording" if not most else ""
    yield Doubt(
        "cut" if queued else "missing launches",
        count,
        f"{count:,} of {len(work.event):,} kernels and copies ({int(work.dur[lost].sum()) / total:.0%} of "
        "their time) "
        f"{'were launched before the recording began' if queued else f'have no launch call{when}'}",
        over(work.start[lost], work.end[lost]),
    )


def _waited_for(recording: Recording, calls: Int) -> Bool:
    """Whether the host later waited until all was done, so that their kernels ran during the recording."""
    start = recording.events.start
    syncs = start[recording.called(DEVICE_SYNCS)]
    last = int(syncs.max()) if len(syncs) else -1
    waited: Bool = start[calls] < last
    return waited


def _between(recording: Recording, calls: Int) -> Union:
    """When the lost kernels must have run: between what was launched before and after, while nothing ran."""
    work = recording.work
    linked = np.flatnonzero(recording.launched >= 0)
    if not len(linked):
        return over([int(recording.events.start[calls].min())], [recording.end])
    order = linked[np.argsort(recording.launched[linked], kind="stable")]
    launched = recording.launched[order]
    ended = np.maximum.accumulate(work.end[order])
    starts = np.minimum.accumulate(work.start[order][::-1])[::-1]
    called = recording.events.start[calls]
    row = np.searchsorted(launched, called)
    low = np.where(row > 0, ended[np.maximum(row - 1, 0)], called)
    high = np.where(row < len(order), starts[np.minimum(row, len(order) - 1)], recording.end)
    return difference(over(np.maximum(low, called), high), recording.busy)


def _names(recording: Recording, calls: Int) -> str:
    codes, count = np.unique(recording.events.name[calls], return_counts=True)
    order = np.argsort(-count, kind="stable")[:2]
    return ", ".join(f"{count[row]:,} {recording.events.names[codes[row]]}" for row in order)


def clock(recording: Recording) -> Iterator[Doubt]:
    """Kernels before their launch calls, streams out of order, work that ends after a host waited for it."""
    work, launched = recording.work, recording.launched
    linked = np.flatnonzero(launched >= 0)
    if not len(linked):
        return
    early = linked[work.start[linked] < launched[linked] - CLOCK_TOLERANCE_NS]
    swapped = _swapped(recording)
    late = _after_waiting(recording)
    crowded = _crowded(recording)
    reasons = []
    if len(early) > max(FEW_RECORDS, DISORDER_SHARE * len(linked)):
        ahead = int((launched[early] - work.start[early]).max())
        reasons.append(
            f"{len(early):,} of {len(linked):,} kernels and copies begin before their launch call, by up "
            f"to {milliseconds(ahead)}"
        )
    if len(swapped) > max(FEW_RECORDS, DISORDER_SHARE * len(linked)):
        reasons.append(f"{len(swapped):,} run before earlier launches of the same stream")
    if len(crowded) > max(FEW_RECORDS, CROWDED_SHARE * len(work.event)):
        reasons.append(f"{len(crowded):,} begin before their predecessor on the stream has ended")
    else:
        crowded = crowded[:0]
    if len(late):
        reasons.append(f"{len(late):,} end after a call that waited for them had returned")
    if reasons:
        rows = np.unique(np.concatenate((early, swapped, late, crowded)))
        yield Doubt("clock", len(rows), "; ".join(reasons), over(work.start[rows], work.end[rows]))


def overlapping_kernels(recording: Recording) -> Iterator[Doubt]:
    """Work of one stream that runs at the same time.

    Branches of a graph may: there only kernels count that take much longer than others of their name, and so
    reach into what follows them.
    """
    work = recording.work
    graph = recording.under_graph
    reaching = np.where(~graph | _long(recording), work.end, work.start)
    starts: list[Int] = []
    ends: list[Int] = []
    for part in (np.flatnonzero(~graph), np.flatnonzero(graph)):
        for rows in rows_by_code(work.lane[part]).values():
            start, end = work.start[part[rows]], work.end[part[rows]]
            reached = np.maximum.accumulate(reaching[part[rows]])[:-1]
            low, high = start[1:], np.minimum(reached, end[1:])
            starts.append(low[high > low])
            ends.append(high[high > low])
    start, end = (np.concatenate(times) if times else np.empty(0, np.int64) for times in (starts, ends))
    clipped = sum(number for what, number in recording.meta.repaired.items() if what.startswith(_CLIPPED))
    overlap = int((end - start).sum())
    much = overlap > OVERLAP_SHARE * recording.busy.total or bool((end - start > OVERLAP_NS).any())
    if not much and not clipped:
        return
    reasons = [f"{len(start):,} kernels overlap their predecessor on the stream, by {milliseconds(overlap)}"]
    if clipped:
        reasons.append(f"{clipped:,} overran the next one by more than 1 ms and were cut there")
    yield Doubt(
        "overlapping kernels",
        len(start) * much + clipped,
        "; ".join(reasons if much else reasons[1:]),
        over(start, end),
    )


def _long(recording: Recording) -> Bool:
    """Work that takes LONG_RATIO times the median of its name, of LEAST_NAMESAKES and more."""
    work = recording.work
    long = np.zeros(len(work.event), dtype=bool)
    for rows in rows_by_code(work.name).values():
        if len(rows) >= LEAST_NAMESAKES:
            long[rows] = work.dur[rows] > LONG_RATIO * np.median(work.dur[rows])
    return long


def _swapped(recording: Recording) -> Int:
    """Work that runs before other work that was launched earlier on its stream."""
    work, launched = recording.work, recording.launched
    linked = np.flatnonzero(launched >= 0)
    swapped = []
    for rows in rows_by_code(work.lane[linked]).values():
        called = launched[linked[rows]]
        latest = np.maximum.accumulate(called)[:-1]
        swapped.append(linked[rows[1:][called[1:] < latest - CLOCK_TOLERANCE_NS]])
    return np.concatenate(swapped) if swapped else np.empty(0, np.int64)


def _crowded(recording: Recording) -> Int:
    """Work that begins before other work on its stream has ended; branches of a graph may."""
    work = recording.work
    outside = np.flatnonzero(~recording.under_graph)
    crowded = []
    for rows in rows_by_code(work.lane[outside]).values():
        reached = np.maximum.accumulate(work.end[outside[rows]])[:-1]
        crowded.append(outside[rows[1:][work.start[outside[rows[1:]]] < reached - CLOCK_TOLERANCE_NS]])
    return np.concatenate(crowded) if crowded else np.empty(0, np.int64)


def _after_waiting(recording: Recording) -> Int:
    """Work that ends long after a call which waited for the whole device had returned."""
    work, launched, events = recording.work, recording.launched, recording.events
    syncs = np.flatnonzero(recording.called(DEVICE_SYNCS))
    linked = np.flatnonzero(launched >= 0)
    if not len(syncs) or len(np.unique(work.device)) > 1:
        return np.empty(0, np.int64)
    syncs = syncs[np.argsort(events.start[syncs], kind="stable")]
    following = np.searchsorted(events.start[syncs], launched[linked], side="right")
    has = following < len(syncs)
    back = events.end[syncs[np.minimum(following, len(syncs) - 1)]]
    return linked[has & (work.end[linked] > back + AFTER_SYNC_NS)]


def missing_work(recording: Recording) -> Iterator[Doubt]:
    """Gaps in the GPU's work during which work was queued, or the host waited for the GPU.

    Before the first recorded work, only waiting tells: that work may have been late for other reasons.
    """
    work, events = recording.work, recording.events
    if len(work.event) < 2:
        return
    waits = recording.called(SYNCS)
    reached = np.maximum.accumulate(work.end)[:-1]
    after = np.flatnonzero(work.start[1:] > reached) + 1
    first = int(work.start[0])
    start = np.append(reached[after - 1], min(first, int(events.start[waits].min(initial=first))))
    end = np.append(work.start[after], first)
    since = np.append(np.minimum(_queued(recording, after), end[:-1]), first)
    waiting = union(events.start[waits], events.end[waits])
    waited = waiting.covered(start, end)
    begin = np.maximum(start, since)
    at_graph = np.append(recording.under_graph[after] | recording.under_graph[after - 1], False)
    least = np.where(at_graph, HOLE_AT_GRAPH_NS, HOLE_ELSEWHERE_NS)
    hole = (end - begin >= least) | (waited >= least)
    begin = np.where(waited > end - begin, start, begin)
    total = int((end - begin)[hole].sum())
    if total < HOLE_SHARE * recording.recorded_ns:
        return
    longest = int(np.argmax(np.where(hole, end - begin, 0)))
    queued = int(end[longest] - max(since[longest], start[longest]))
    why = [f"work was queued for {milliseconds(queued)}"] if queued else []
    if waited[longest]:
        why.append(f"the host waited for the GPU for {milliseconds(int(waited[longest]))}")
    yield Doubt(
        "missing work",
        int(hole.sum()),
        f"the GPU seems idle for {milliseconds(total)} although it had work, at most "
        f"{milliseconds(int(end[longest] - begin[longest]))} at once, when {' and '.join(why)}",
        over(begin[hole], end[hole]),
    )


def waiting_at_the_end(recording: Recording) -> Iterator[Doubt]:
    """The host goes on waiting for the GPU long after the last recorded work.

    That work is missing, even where each launch call has its kernel: a lost buffer holds both. A GPU clock
    that is early by so much puts kernels before their launch calls.
    """
    work, events, launched = recording.work, recording.events, recording.launched
    if not len(work.event):
        return
    last = int(work.end.max())
    rows = np.flatnonzero(recording.called(SYNCS) & (events.end > last))
    start, end = np.maximum(events.start[rows], last), events.end[rows]
    long = end - start >= WAIT_AT_END_NS
    total = int((end - start)[long].sum())
    if total < HOLE_SHARE * recording.recorded_ns:
        return
    early = bool(((launched >= 0) & (work.start < launched - CLOCK_TOLERANCE_NS)).sum() > FEW_RECORDS)
    yield Doubt(
        "clock" if early else "ends early",
        int(long.sum()),
        f"after the last recorded GPU work the host still waits {milliseconds(total)} for the GPU",
        over(start[long], end[long]),
    )


def _queued(recording: Recording, rows: Int) -> Int:
    """Since when this work was queued, ns: the end of its launch call, of a copy to the host its start.

    Calls that copy to the host wait until the copy is done; others may take long before they queue anything.
    """
    work, events = recording.work, recording.events
    launch = work.launch[rows]
    to_host = matching(work.names, _TO_HOST)[work.name[rows]]
    never = np.iinfo(np.int64).max
    return np.where(to_host, lookup(events.start, launch, never), lookup(events.end, launch, never))


def missing_graph_kernels(recording: Recording) -> Iterator[Doubt]:
    """Graph launches whose replays lack kernels that sibling replays have."""
    replays = _replays(recording)
    if not 2 <= len(replays.names) <= MOST_REPLAY_KINDS:
        return
    count = np.bincount(replays.kind, minlength=len(replays.names))
    lacking = {
        kind: sibling
        for kind in range(len(replays.names))
        if (sibling := _sibling(kind, replays, count)) >= 0
    }
    damaged = np.flatnonzero(np.isin(replays.kind, list(lacking)))
    if not len(damaged):
        return
    work = recording.work
    calls = replays.call[damaged]
    rows = np.flatnonzero(np.isin(work.launch, calls))
    owner = np.searchsorted(np.sort(calls), work.launch[rows])
    start = np.full(len(calls), np.iinfo(np.int64).max)
    end = np.zeros(len(calls), dtype=np.int64)
    np.minimum.at(start, owner, work.start[rows])
    np.maximum.at(end, owner, work.end[rows])
    worst = min(lacking, key=lambda kind: len(replays.names[kind]) / len(replays.names[lacking[kind]]))
    lost = sum(
        int(count[kind]) * (len(replays.names[sibling]) - len(replays.names[kind]))
        for kind, sibling in lacking.items()
    )
    yield Doubt(
        "missing graph kernels",
        len(damaged),
        f"{len(damaged):,} of {len(replays.call):,} graph replays lack {lost:,} kernels that others of "
        f"the same graph have; the worst has {len(replays.names[worst]):,} of "
        f"{len(replays.names[lacking[worst]]):,}",
        over(start, end),
    )


def _replays(recording: Recording) -> _Replays:
    """All replays with kernels, told apart by names and order of their kernels."""
    work = recording.work
    rows = np.flatnonzero(recording.under_graph)
    rows = rows[np.argsort(work.launch[rows], kind="stable")]
    calls, first, number = np.unique(work.launch[rows], return_index=True, return_counts=True)
    in_time = np.argsort(work.start[rows[first]], kind="stable")
    calls, first, number = calls[in_time], first[in_time], number[in_time]
    kinds: dict[bytes, int] = {}
    names: list[Int] = []
    kind = np.zeros(len(calls), dtype=np.int64)
    for replay, (begin, length) in enumerate(zip(first.tolist(), number.tolist(), strict=True)):
        sequence = work.name[rows[begin : begin + length]]
        key = np.sort(sequence).tobytes()
        if key not in kinds:
            kinds[key] = len(kinds)
            names.append(sequence)
        kind[replay] = kinds[key]
    return _Replays(calls, kind, names)


def _sibling(kind: int, replays: _Replays, count: Int) -> int:
    """The smallest other kind of replay that this one lacks kernels of, -1 for none."""
    names = replays.names
    own = names[kind]
    candidates = [
        other
        for other in range(len(names))
        if len(own) < len(names[other]) <= len(own) / SAME_GRAPH_SHARE and count[other] >= count[kind]
    ]
    for other in sorted(candidates, key=lambda other: len(names[other])):
        if not _is_part(own, names[other]):
            continue
        amid = (
            count[kind] == 1
            and count[other] >= LEAST_SIBLING_REPLAYS
            and _stands_alike(kind, other, replays.kind)
        )
        if amid or not _is_piece(own, names[other]):
            return other
    return -1


def _stands_alike(kind: int, other: int, order: Int) -> bool:
    """Whether the replay of a kind stands between the same kinds of replay as one of another kind."""
    neighbours = [*zip(order[:-2].tolist(), order[1:-1].tolist(), order[2:].tolist(), strict=True)]
    around = {(before, after) for before, middle, after in neighbours if middle == kind}
    return any((before, after) in around for before, middle, after in neighbours if middle == other)


def _is_part(own: Int, other: Int) -> bool:
    """Whether each name is as often in the other."""
    size = int(max(own.max(), other.max())) + 1
    return bool((np.bincount(own, minlength=size) <= np.bincount(other, minlength=size)).all())


def _is_piece(own: Int, other: Int) -> bool:
    """Whether it stands in the other without a break."""
    for begin in np.flatnonzero(other[: len(other) - len(own) + 1] == own[0]).tolist():
        if np.array_equal(other[begin : begin + len(own)], own):
            return True
    return False

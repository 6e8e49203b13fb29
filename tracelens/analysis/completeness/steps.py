"""Steps that differ from their siblings: with fewer kernels, or not whole.

Steps are compared only where the others agree with each other, and their kernels only where the host did the
same in them: the steps of a training run differ by less than 1% in both, while those of serving may differ as
they like.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np

from tracelens.analysis.completeness.doubts import Doubt, milliseconds, over
from tracelens.analysis.completeness.launches import MOST, material
from tracelens.analysis.completeness.recording import DEVICE_SYNCS, Recording
from tracelens.arrays import Bool, Float, Int
from tracelens.table import codes
from tracelens.trace import STEP_MARK, matching

SHORT = 0.75
"""A step with fewer kernels than this share of its siblings' median is short."""

SAME = 0.9
"""Counts within this ratio of each other are alike."""

EMPTY = 0.1
"""A mark shorter than this share of its siblings' is only the beginning of a step."""

OUTSIDE = 0.01
"""More than this share of the launch calls outside of all steps are those of a step without its mark."""

CONSIDERABLE = 0.05
"""Up to this share of GPU time, work that was queued before the recording began is ordinary."""

BEGIN, END = "Iteration Start: ", "Record Window End"
"""What Kineto's marks of the recorded time are called."""

MANY = 20
"""Launch calls of a recording, or ops of a step, of which a part is told from the whole."""

LEAST = 5
"""Pieces of work that a stream must have in each other step."""


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
    short = alike & op_alike & (kernels < SHORT * median) & (ops >= SAME * op_median) & (ops > 0)
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
    if len(whole) < 2 or not op_alike.all() or ops.min() < SAME * ops.max():
        return
    ended = (count[:, -1] == 0) & (count[:, :-1].min(axis=1) >= LEAST)
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
            and usual >= MANY
            and (ops[row] < SAME * inner or (alike[row] and ops[row] < SAME * median[row]))
        )
        begun = kernels[row] == 0 and length[row] < EMPTY * length_median[row]
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
    if material(int(outside.sum()), len(calls)) and outside.mean() > OUTSIDE:
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
    if len(calls) < MANY:
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
    # Beyond MOST the check of launches says it, with step marks, too.
    considerable = CONSIDERABLE * total < early_ns <= MOST * total
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
    alike: Bool = other(0) >= SAME * other(last)
    return (other(last // 2) + other((last + 1) // 2)) / 2, alike

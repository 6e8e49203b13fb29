"""Records that must be there because others are: calls, kernels and their links, collectives, step marks.

Calls and GPU work share a correlation id, and the profiler numbers calls in the order in which they are made.
In 375,000 launches of 156 undamaged traces no kernel launched during the recording lacks its call, and no
call lacks its kernel but those of memsets of no byte and those made while a graph was captured. All kernels
of NCCL that a recorded collective launched have its record, and step marks follow each other without a gap.
So one record that lacks its counterpart is lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import numpy as np

from tracelens.analysis.completeness.doubts import (
    DEVICE_SYNCS,
    GRAPH_CALLS,
    Doubt,
    Recording,
    milliseconds,
    nowhere,
    over,
)
from tracelens.arrays import Bool, Int, lookup, numbered, unique
from tracelens.table import nearest
from tracelens.trace import STEP_MARK, WORK_KINDS, Union, difference, fitting, matching

FEW_RECORDS, EDGE_SHARE = 2, 0.0005
"""At the edges of the window work is in flight: up to so many records, and up to this share, are no doubt."""
ORPHAN_TIME_SHARE = 0.5
"""Up to 32% of the GPU time of undamaged recordings was launched before they began; beyond this share of it
nothing can be attributed."""
_NCCL = re.compile(r"^r?nccl")
_TORCH_OP = re.compile(r"^(?:_?c10d(?:_functional)?::|record_param_comms$)")


def material(count: int, total: int) -> bool:
    """Whether as many of a total matter at an edge of the window."""
    return count > max(FEW_RECORDS, EDGE_SHARE * total)


def missing_kernels(recording: Recording) -> Iterator[Doubt]:
    """Launch calls whose kernels are not recorded, in the middle of the recording and at its end."""
    calls, events = recording.launch_calls, recording.events
    lost = calls[~recording.has_work[calls]]
    if not len(lost):
        return
    is_graph = recording.called(GRAPH_CALLS)[lost]
    unfinished = _unfinished(recording)
    last_launch = int(recording.launched.max(initial=-1))
    eager = lost[~is_graph & ~unfinished]
    # Any of these calls may be that of work without a correlation id.
    if len(eager) > int(recording.bare.sum()):
        codes, count = np.unique(events.name[eager], return_counts=True)
        most = np.argsort(-count, kind="stable")[:2]
        calls_text = ", ".join(f"{count[row]:,} {events.names[codes[row]]}" for row in most)
        at_end = int((events.start[eager] > last_launch).sum()) if last_launch >= 0 else 0
        tail = f"; {at_end:,} of them after the last recorded kernel" if at_end else ""
        yield Doubt(
            "missing kernels",
            len(eager),
            f"{len(eager):,} of {len(calls):,} launch calls have no kernel or copy ({calls_text}){tail}",
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


def _unfinished(recording: Recording) -> Bool:
    """Which of the launch calls without work may be those of work in flight when the recording ended.

    Not where the host waited for the device later, nor where work of a later call under an op of that name
    is recorded: it ran on the same stream.
    """
    calls, events = recording.launch_calls, recording.events
    has_work = recording.has_work[calls]
    lost = calls[~has_work]
    syncs = events.start[recording.called(DEVICE_SYNCS)]
    open_: Bool = events.start[lost] >= syncs.max(initial=-1)
    if not open_.any() or not has_work.any():
        return open_ & has_work.any()
    op = lookup(events.name, nearest(events.parent, events.depth, events.where("op"))[calls], -1)
    latest = np.full(len(events.names) + 1, -1, dtype=np.int64)
    np.maximum.at(latest, op[has_work], events.start[calls[has_work]])
    return open_ & (events.start[lost] > latest[op[~has_work]])


def in_flight(recording: Recording) -> Mapping[str, str]:
    """Work that ran across an edge of the window, for people: it belongs to no step and is no loss."""
    notes = {}
    if stretch := recording.in_flight.ns:
        notes["work in flight at the start"] = (
            f"the GPU was busy for {milliseconds(stretch)} with work launched before the recording began; "
            "steps begin after it"
        )
    if count := int(_unfinished(recording).sum()):
        notes["work in flight at the end"] = (
            f"{count:,} launch call{'s have' if count > 1 else ' has'} no kernel yet when the recording ends"
        )
    return notes


def missing_launches(recording: Recording) -> Iterator[Doubt]:
    """Kernels whose calls are not recorded: launched during the recording, or most of all.

    The profiler records the calls of the runtime even where it records nothing else of the host. A kernel was
    launched during the recording if its call would have a later id than one that is recorded, or if it runs
    behind a kernel of its stream that was.
    """
    work = recording.work
    ids = recording.correlation[work.event]
    orphan = (work.launch < 0) & (ids > 0)
    if not orphan.any():
        return
    begun = orphan & ((ids > recording.first_call_id) | _behind_launched(recording))
    total = max(int(work.dur.sum()), 1)
    most = int(work.dur[orphan].sum()) > ORPHAN_TIME_SHARE * total
    if not most and not len(recording.launch_calls):
        return
    lost = orphan if most else begun
    count = int(lost.sum())
    if not count or (most and not begun.any() and not material(count, len(work.event))):
        return
    queued = bool(recording.is_call.any()) and not begun.any()
    when = ", although they were launched during the recording" if not most else ""
    yield Doubt(
        "cut" if queued else "missing launches",
        count,
        f"{count:,} of {len(work.event):,} kernels and copies ({int(work.dur[lost].sum()) / total:.0%} of "
        "their time) "
        f"{'were launched before the recording began' if queued else f'have no launch call{when}'}",
        over(work.start[lost], work.end[lost]),
    )


def _behind_launched(recording: Recording) -> Bool:
    """Which work runs behind some of its stream that was launched during the recording."""
    work = recording.work
    _, lane = numbered(work.lane)
    first = np.full(int(lane.max(initial=0)) + 1, np.iinfo(np.int64).max)
    launched = np.flatnonzero((work.launch >= 0) & ~recording.under_graph)
    np.minimum.at(first, lane[launched], work.start[launched])
    behind: Bool = work.start > first[lane]
    return behind


def missing_links(recording: Recording) -> Iterator[Doubt]:
    """Work without the correlation id, or calls without the arrow, that their like have.

    Old ROCm gives some kernels, such as RCCL's, no id at all.
    """
    work, bare = recording.work, recording.bare
    ids = recording.correlation[work.event]
    lost = np.zeros(len(bare), dtype=bool)
    if (ids > 0).any():
        kind = recording.events.kind[work.event]
        for value in (work.name, work.lane * (int(kind.max()) + 1) + kind):
            lost |= bare & np.isin(value, unique(value[ids > 0]))
    elif (recording.correlation[recording.launch_calls] > 0).any():
        lost = bare
    called = work.launch >= 0
    arrowless = called & ~work.linked & ~recording.under_graph
    if arrowless.any():
        call = lookup(recording.events.name, work.launch, -1)
        arrowless &= np.isin(call, unique(call[called & work.linked]))
    reasons = [
        f"{int(mask.sum()):,} of {len(ids):,} kernels and copies {text}"
        for mask, text in (
            (lost, "lack the correlation id that others of their stream or name have"),
            (arrowless, "lack the arrow from their launch call that others have"),
        )
        if mask.any()
    ]
    if reasons:
        rows = lost | arrowless
        yield Doubt(
            "missing links", int(rows.sum()), "; ".join(reasons), over(work.start[rows], work.end[rows])
        )


def missing_collectives(recording: Recording) -> Iterator[Doubt]:
    """Kernels of NCCL without the record of their collective that others have.

    Those of a stream with records, or that an op of torch.distributed launched: other libraries that call
    NCCL leave no records, and a graph's nodes have none. Without it the kernel itself may say what it did.
    """
    work, table = recording.work, recording.trace.tables["collectives"]
    kernel, record = table.array("kernel_id"), table.array("event_id")
    by_host = kernel[(kernel >= 0) & (kernel != record)]
    is_nccl = work.kind == WORK_KINDS.index("comm")
    is_nccl &= fitting(work.names, work.name, _NCCL) & (work.launch >= 0) & ~recording.under_graph
    if not len(by_host) or not is_nccl.any():
        return
    recorded = np.isin(work.event, by_host)
    by_torch = fitting(recording.events.names, lookup(recording.events.name, work.op, 0), _TORCH_OP)
    like = np.isin(work.lane, unique(work.lane[recorded])) | (by_torch & (work.op >= 0))
    lost = np.flatnonzero(is_nccl & ~recorded & like)
    if len(lost):
        yield Doubt(
            "missing collectives",
            len(lost),
            f"{len(lost):,} of {int(is_nccl.sum()):,} NCCL kernels have no record of their collective, "
            "others do",
            over(work.start[lost], work.end[lost]),
        )


def missing_step_marks(recording: Recording) -> Iterator[Doubt]:
    """Numbers that lack between the steps, and steps that are marked on the GPU only."""
    events = recording.events
    is_mark = matching(events.names, STEP_MARK)[events.name]
    if not is_mark.any():
        return
    of_host, of_gpu = (
        {int(events.names[code].rpartition("#")[2]) for code in unique(events.name[is_mark & mask])}
        for mask in (events.where("annotation") & ~events.copied, events.where("gpu_annotation"))
    )
    lost = sorted(of_gpu - of_host | ({*range(min(of_host), max(of_host))} - of_host if of_host else set()))
    if lost:
        steps = ", ".join(map(str, lost[:3]))
        yield Doubt("missing step marks", len(lost), f"the mark of step {steps} is not recorded", nowhere())


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

"""Launch calls without kernels, and kernels without launch calls.

Calls and GPU work share a correlation id, and the profiler numbers calls in the order in which they are made.
In 375,000 launches of 156 undamaged traces no kernel launched during the recording lacks its call, and no
call lacks its kernel but those of memsets of no byte and those made while a graph was captured.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tracelens.analysis.completeness.doubts import Doubt, milliseconds, over
from tracelens.analysis.completeness.recording import DEVICE_SYNCS, GRAPH_CALLS, Recording
from tracelens.arrays import Bool, Int
from tracelens.trace import Union, difference

FEW, SHARE = 2, 0.0005
"""Up to so many, and up to this share, may be lost without a doubt."""

MOST = 0.5
"""Up to 32% of the GPU time of undamaged recordings was launched before they began; beyond this share of it
nothing can be attributed."""

_NEVER = np.iinfo(np.int64).max


def material(count: int, total: int) -> bool:
    """Whether as many of a total matter."""
    return count > max(FEW, SHARE * total)


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
    most = int(work.dur[orphan].sum()) > MOST * total
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

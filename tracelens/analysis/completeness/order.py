"""Timestamps that contradict each other: the order of launches, streams and waiting hosts.

In the undamaged traces all kernels begin at least 3.7 us after their launch call, each stream runs in the
order of its launch calls, kernels of a stream overlap by at most 13 us, and hosts that waited for the GPU go
on at most 8 us before its work ends.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tracelens.analysis.completeness.doubts import Doubt, milliseconds, over
from tracelens.analysis.completeness.recording import DEVICE_SYNCS, Recording
from tracelens.arrays import Bool, Int
from tracelens.trace import rows_by_code

TOLERANCE_NS = 1_000
"""Resolution of old traces."""

AFTER_SYNC_NS = 100_000
OVERLAP_NS = 1_000_000
OVERLAP_SHARE = 0.01
SHARE = 0.002
FEW = 2

CROWDED = 0.05
"""So many overlap only where the clock is wrong; corrupt durations are those of single kernels."""

LONG, LIKE = 3, 5
"""Undamaged work that overlaps what follows in a graph takes up to 1.3 times the median of its name."""

_CLIPPED = "GPU work overrunning the next on its stream"


def clock(recording: Recording) -> Iterator[Doubt]:
    """Kernels before their launch calls, streams out of order, work that ends after a host waited for it."""
    work, launched = recording.work, recording.launched
    linked = np.flatnonzero(launched >= 0)
    if not len(linked):
        return
    early = linked[work.start[linked] < launched[linked] - TOLERANCE_NS]
    swapped = _swapped(recording)
    late = _after_waiting(recording)
    crowded = _crowded(recording)
    reasons = []
    if len(early) > max(FEW, SHARE * len(linked)):
        ahead = int((launched[early] - work.start[early]).max())
        reasons.append(
            f"{len(early):,} of {len(linked):,} kernels and copies begin before their launch call, by up "
            f"to {milliseconds(ahead)}"
        )
    if len(swapped) > max(FEW, SHARE * len(linked)):
        reasons.append(f"{len(swapped):,} run before earlier launches of the same stream")
    if len(crowded) > max(FEW, CROWDED * len(work.event)):
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
    """Work that takes LONG times as long as the median of its name, of which there are LIKE at least."""
    work = recording.work
    long = np.zeros(len(work.event), dtype=bool)
    for rows in rows_by_code(work.name).values():
        if len(rows) >= LIKE:
            long[rows] = work.dur[rows] > LONG * np.median(work.dur[rows])
    return long


def _swapped(recording: Recording) -> Int:
    """Work that runs before other work that was launched earlier on its stream."""
    work, launched = recording.work, recording.launched
    linked = np.flatnonzero(launched >= 0)
    swapped = []
    for rows in rows_by_code(work.lane[linked]).values():
        called = launched[linked[rows]]
        latest = np.maximum.accumulate(called)[:-1]
        swapped.append(linked[rows[1:][called[1:] < latest - TOLERANCE_NS]])
    return np.concatenate(swapped) if swapped else np.empty(0, np.int64)


def _crowded(recording: Recording) -> Int:
    """Work that begins before other work on its stream has ended; branches of a graph may."""
    work = recording.work
    outside = np.flatnonzero(~recording.under_graph)
    crowded = []
    for rows in rows_by_code(work.lane[outside]).values():
        reached = np.maximum.accumulate(work.end[outside[rows]])[:-1]
        crowded.append(outside[rows[1:][work.start[outside[rows[1:]]] < reached - TOLERANCE_NS]])
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

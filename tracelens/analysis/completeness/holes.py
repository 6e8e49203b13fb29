"""Times in which the GPU seems idle although work is queued or the host waits for it.

A GPU starts queued work within microseconds: the longest such gap in the undamaged traces is 84 us, and 16 us
next to a graph's replay; hosts wait up to 42 us for an idle GPU. Where another process shares the GPU, its
time slices show as gaps of 1 to 2.5 ms, which are real. Work that the profiler did not record, such as nodes
of a graph, leaves holes of any length.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from tracelens.analysis.completeness.doubts import Doubt, milliseconds, over
from tracelens.analysis.completeness.order import FEW, TOLERANCE_NS
from tracelens.analysis.completeness.recording import SYNCS, Recording
from tracelens.arrays import Int, lookup
from tracelens.trace import matching, union

AT_GRAPH_NS = 100_000
"""Next to a graph's replay, no queued work waits as long."""

ELSEWHERE_NS = 5_000_000
"""Longer than the time slice of another process."""

AT_END_NS = 1_000_000
"""In undamaged traces no host waits for as long once the last work has ended."""

SHARE = 0.005
"""Holes of less than this share of the recorded time are no doubt."""

_TO_HOST = re.compile(r"DtoH|DeviceToHost|DEVICE_TO_HOST")


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
    least = np.where(at_graph, AT_GRAPH_NS, ELSEWHERE_NS)
    hole = (end - begin >= least) | (waited >= least)
    begin = np.where(waited > end - begin, start, begin)
    total = int((end - begin)[hole].sum())
    if total < SHARE * recording.recorded_ns:
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
    long = end - start >= AT_END_NS
    total = int((end - start)[long].sum())
    if total < SHARE * recording.recorded_ns:
        return
    early = bool(((launched >= 0) & (work.start < launched - TOLERANCE_NS)).sum() > FEW)
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

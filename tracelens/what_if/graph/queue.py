"""Launches that wait for room in the queue of a GPU."""

from __future__ import annotations

import numpy as np

from tracelens.arrays import Bool
from tracelens.trace import Trace, rows_by_code

_DEEP = 256
"""Pieces of work queued on a stream below which no launch waits for room. An H100 has room for 1,022, a V100,
whose queue also holds events, for 350 to 1,000 kernels."""

_LONG = 4
"""A launch that waits takes more than this many times the median of those that do not."""


def full_queue(trace: Trace) -> Bool:
    """Which events are launches that waited for room in the queue: long ones behind much queued work."""
    events, work = trace.arrays, trace.work
    result = np.zeros(len(events.start), dtype=bool)
    launched = np.flatnonzero(work.launch >= 0)
    if work.cpu_only or len(launched) <= _DEEP:
        return result
    for rows in rows_by_code(work.lane[launched]).values():
        calls, ends = np.unique(work.launch[launched[rows]]), np.sort(work.end[launched[rows]])
        begun = events.start[calls]
        queued = np.searchsorted(np.sort(begun), begun) - np.searchsorted(ends, begun, side="right")
        result[calls[queued >= _DEEP]] = True
    calls = np.unique(work.launch[launched])
    dur = events.end[calls] - events.start[calls]
    for rows in rows_by_code(events.name[calls]).values():
        free = rows[~result[calls[rows]]]
        typical = np.median(dur[free]) if len(free) else np.inf
        result[calls[rows[dur[rows] <= _LONG * typical]]] = False
    return result

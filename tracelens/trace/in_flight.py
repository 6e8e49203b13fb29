"""Work in flight when the recording began: launched before it, and mostly not recorded."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from tracelens.arrays import lookup
from tracelens.trace.intervals import union

if TYPE_CHECKING:
    from tracelens.trace.trace import Trace

WAITS = re.compile(r"^(?:cuda|cu|hip)(?:\w*Synchronize|Memcpy)")
TO_HOST = re.compile(r"DtoH|DeviceToHost|DEVICE_TO_HOST")
LEAST_NS = 5_000_000
"""Shorter pauses are the time slices of other processes on the GPU."""
AT_EDGE_SHARE = 0.1
"""It begins so early in the recording, as a share of its length."""


class InFlight(Struct, frozen=True):
    """When work from before the recording held up what it launched, ns.

    Where none did, the begin of the recording, without length.
    """

    start: int
    end: int

    @property
    def ns(self) -> int:
        return self.end - self.start


def in_flight_at_start(trace: Trace) -> InFlight:
    """From when the first work of a stream was queued, or the host waited, until the GPU came to it.

    Streams run in the order of their launches. So what a stream's first recorded work waits for in its queue,
    and what the host waits for before it launched anything, was launched before the recording began. Kineto
    drops such work, since it begins outside of the window. Where it is recorded, as the first of its stream
    and without its call, it is in flight as long as little else runs.
    """
    work, events = trace.work, trace.arrays
    origin = int(events.start.min()) if len(events.start) else 0
    nothing = InFlight(origin, origin)
    if trace.meta.cpu_only or len(work.event) < 2:
        return nothing
    longest = int(np.argmax(np.where(work.launch < 0, work.dur, 0)))
    start, end = int(work.start[longest]), int(work.end[longest])
    if work.launch[longest] < 0 and end - start >= max(LEAST_NS, (start - origin) / AT_EDGE_SHARE):
        is_first = not np.any(work.lane[:longest] == work.lane[longest])
        launched = work.launch >= 0
        beside = union(work.start[launched], work.end[launched]).covered(*np.array([[start], [end]]))
        if is_first and launched.any() and beside[0] < AT_EDGE_SHARE * (end - start):
            return InFlight(start, end)
    reached = np.maximum.accumulate(np.append(origin, work.end[:-1]))
    idle = np.flatnonzero(work.start - reached >= LEAST_NS)
    if not len(idle):
        return nothing
    first = int(idle[0])  # the work before which the GPU did nothing for long
    is_first = not np.any(work.lane[:first] == work.lane[first])
    if not is_first or reached[first] - origin > AT_EDGE_SHARE * (work.start[first] - reached[first]):
        return nothing
    end, launch = int(work.start[first]), work.launch[first : first + 1]
    to_host = TO_HOST.search(work.names[work.name[first]]) is not None
    queued_at = int(lookup(events.start if to_host else events.end, launch, end)[0])
    if end - queued_at >= LEAST_NS:
        return InFlight(max(int(reached[first]), queued_at), end)
    if first or (launch < 0).any():
        return nothing
    waits = events.fitting(WAITS, "launch")
    waits &= events.start < int(lookup(events.start, launch, end)[0])
    waited = union(events.start[waits], np.minimum(events.end[waits], end))
    if waited.total < LEAST_NS or waited.start[0] - origin > AT_EDGE_SHARE * waited.total:
        return nothing
    return InFlight(int(waited.start[0]), int(waited.end[-1]))

"""Calls in which the host waits, and for whom: the GPU, the garbage collector, the profiler."""

from __future__ import annotations

import re

import numpy as np

from tracelens.analysis.host.reads import reads
from tracelens.arrays import Bool, lookup
from tracelens.table import nearest
from tracelens.trace import STEP_MARK, WORK_KINDS, Events, Trace, Work, matching

SYNCHRONIZE = re.compile(r"^(?:cuda|hip|cu)(?:Stream|Device|Event|Ctx)Synchronize")
"""Calls that do nothing but wait."""

BLOCKING = re.compile(
    rf"{SYNCHRONIZE.pattern}|^hipMemcpyWithStream$|^(?:cuda|hip)Memcpy(?:2D|3D)?$"
    r"|^(?:cuda|hip)(?:Malloc|Free|HostAlloc|HostFree|MallocHost|FreeHost|HostMalloc)$"
    r"|^(?:cuda|hip)Memcpy(?:To|From)Symbol$"
    r"|^cuMem(?:cpy(?:DtoH|HtoD)|Alloc|Free|AllocHost|FreeHost|HostAlloc)(?:_v2)?$"
)
GARBAGE = re.compile(r"^Python GC|^gc\.collect|<built-in function collect>")

_COPY_CALL = re.compile(r"emcpy")
_ON_DEVICE = re.compile(r"DtoD|PtoP|DeviceToDevice|DEVICE_TO_DEVICE")
_DEVICE_SYNCHRONIZE = re.compile(r"^(?:cuda|hip)DeviceSynchronize$")
_PROFILER_FRAME = re.compile(r"\btorch/(?:autograd/)?profiler")
# What CUPTI does for the recording itself; a full command buffer and the loading of code are the program's.
_PROFILER_OVERHEAD = re.compile(r"^(?:Buffer Flush|Activity Buffer Request|Instrumentation|Resource)$")


def named(events: Events, pattern: re.Pattern[str]) -> Bool:
    """Which events have a name that fits."""
    return matching(events.names, pattern)[events.name]


def waiting_calls(trace: Trace, work: Work) -> Bool:
    """Calls in which the host has nothing to do but wait for a GPU: none where there is no GPU."""
    return np.zeros(len(trace.arrays.start), dtype=bool) if work.cpu_only else blocking_calls(trace, work)


def blocking_calls(trace: Trace, work: Work) -> Bool:
    """Calls that wait for the GPU: by name, and copies whose call returned after the copy was done.

    In a CPU-only trace, those in which the host would wait (see reads.py). The profiler's own are not among
    them.
    """
    events = trace.arrays
    if work.cpu_only:
        return reads(trace)
    mask = named(events, BLOCKING) & events.where("launch")
    # A memset, or a copy within the GPU, keeps no call waiting, however late that returns.
    inside = matching(work.names, _ON_DEVICE)
    # A copy that is a kernel may be one of a graph; what launched that waited for none of them.
    is_copy = ~work.is_kernel | lookup(named(events, _COPY_CALL), work.launch, False)
    copies = work.take(
        (work.kind == WORK_KINDS.index("memcpy")) & (work.launch >= 0) & is_copy & ~inside[work.name]
    )
    mask[copies.launch[events.end[copies.launch] >= copies.end]] = True
    return mask & ~trace.once(profiler_calls)


def profiler_calls(trace: Trace) -> Bool:
    """What the profiler does on the program's threads: its frames, and its waiting at begin and end.

    Kineto waits for the device when it starts and stops: outside of whatever the program does, before its
    first op or behind its last one. Ask with `trace.once(profiler_calls)`.
    """
    events = trace.arrays
    frames = events.where("python") & named(events, _PROFILER_FRAME)
    steps = events.where("annotation") & named(events, STEP_MARK)
    ops = np.flatnonzero(events.where("op") | steps)
    begin, end = (int(events.start[ops].min()), int(events.end[ops].max())) if len(ops) else (0, 0)
    waits = named(events, _DEVICE_SYNCHRONIZE) & events.where("launch")
    waits &= (events.end <= begin) | (events.start >= end)
    programs = events.where("op", "annotation", "python") & ~frames
    inside_profiler, inside_program = (
        nearest(events.parent, events.depth, mask) >= 0 for mask in (frames, programs)
    )
    return frames | (waits & (inside_profiler | ~inside_program))


def profiler_overhead(events: Events) -> Bool:
    """What the profiler does between the program's calls, on threads and buffers of its own."""
    return events.where("overhead") & named(events, _PROFILER_OVERHEAD)

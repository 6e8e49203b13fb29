"""Whether the CPU launches work fast enough, and the calls in which the host waits and for whom."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
from msgspec import Struct

from tracelens.analysis.analyzer import analyzer
from tracelens.arrays import Bool, Int, lookup, marked, numbered, ordered, percentiles, unique
from tracelens.table import RANK, Column, Result, Schema, Skip, nearest, result, stats
from tracelens.trace import (
    STEP_MARK,
    WORK_KINDS,
    Events,
    Run,
    Scope,
    Trace,
    Work,
    clip,
    fitting,
    gpu_work,
    matching,
    union,
)

SMALL_NS = 10_000
"""A kernel shorter than this costs about as much to launch as to run."""
QUEUE_BINS = 400
_EDGES = np.array([0, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 1_000_000, 10_000_000])
_BUCKETS = (
    "before its launch", "0-2 µs", "2-5 µs", "5-10 µs", "10-20 µs", "20-50 µs", "50-100 µs", "0.1-1 ms",
    "1-10 ms", "over 10 ms",
)  # fmt: skip
LAUNCHES = Schema(
    "Launching",
    (
        RANK,
        Column("metric", "str", doc="what is counted or timed"),
        Column("count", "int64", "count", "missing for a metric of time only", absent=-1),
        Column("dur_ns", "int64", "ns", "missing for a metric of counts only", absent=-1),
        Column("fraction", "float64", "fraction", "of what `meaning` says; missing for a latency", absent=-1),
        Column("meaning", "str", doc="what the row's numbers are of"),
    ),
    key=("metric",),
)
CALLS = Schema(
    "Launch calls",
    (
        RANK,
        Column("name", "category", doc="runtime or driver call"),
        Column("count", "int64", "count", "calls"),
        Column("sum_ns", "int64", "ns", "CPU time in the call"),
        Column("mean_ns", "float64", "ns", "mean CPU time of a call", intensive=True),
        Column("median_ns", "float64", "ns", "median CPU time of a call", intensive=True),
        Column("p99_ns", "int64", "ns", "99th percentile", intensive=True),
        Column("max_ns", "int64", "ns", "longest call", intensive=True),
    ),
    leading="sum_ns",
    descending=True,
)
HISTOGRAM = Schema(
    "Launch latency",
    (
        RANK,
        Column(
            "bucket", "str", doc="range of latencies, from start of the launch call to start of the GPU work"
        ),
        Column("count", "int64", "count", "launches in the range"),
        Column("fraction_of_launches", "float64", "fraction", "of all launches"),
    ),
    doc="Long latency is fine while work waits in the queue; short latency with an idle GPU means the CPU "
    "cannot keep up.",
)
QUEUE = Schema(
    "Launch queue depth",
    (
        RANK,
        Column("ts_ns", "int64", "ns", "since the rank's first GPU work"),
        Column("depth_max", "int64", "count", "most launches queued at once until the next row"),
        Column("depth_mean", "float64", "count", "time-weighted"),
    ),
    detail=True,
)

TABLES = {"launches": LAUNCHES, "calls": CALLS, "latency_histogram": HISTOGRAM, "queue": QUEUE}

SYNCHRONIZE = re.compile(r"^(?:cuda|hip|cu)(?:Stream|Device|Event|Ctx)Synchronize")
"""Calls that do nothing but wait."""
ALLOCATION = re.compile(
    r"^(?:cuda|hip)(?:Malloc|Free|HostAlloc|HostFree|MallocHost|FreeHost|HostMalloc)$"
    r"|^cuMem(?:Alloc|Free|AllocHost|FreeHost|HostAlloc)(?:_v2)?$"
)
"""Calls that get or release memory of the device, or pinned memory."""
BLOCKING = re.compile(
    rf"{SYNCHRONIZE.pattern}|{ALLOCATION.pattern}|^hipMemcpyWithStream$|^(?:cuda|hip)Memcpy(?:2D|3D)?$"
    r"|^(?:cuda|hip)Memcpy(?:To|From)Symbol$|^cuMemcpy(?:DtoH|HtoD)(?:_v2)?$"
)
GARBAGE = re.compile(r"^Python GC|^gc\.collect|<built-in function collect>")
_COPY_CALL = re.compile(r"emcpy")
_ON_DEVICE = re.compile(r"DtoD|PtoP|DeviceToDevice|DEVICE_TO_DEVICE")
DEVICE_SYNCHRONIZE = re.compile(r"^(?:cuda|hip)DeviceSynchronize$")
_PROFILER_FRAME = re.compile(r"\btorch/(?:autograd/)?profiler")
# CUPTI's kinds of overhead, by Kineto's names. What is neither of these is the recording's own.
_CODE_LOADED = re.compile(r"^(?:Lazy Function Loading|Runtime Triggered Module Loading|Driver Compiler)$")
QUEUE_FULL = re.compile(r"^Command Buffer Full$")
LOADS_CODE = re.compile(
    r"^(?:cu(?:Module|Library)(?:Load|Unload)|cuLink|cudaLibraryLoad|hipModule(?:Load|Unload)|hipLink|nvrtc|hiprtc)"
    r"|torch/_dynamo/convert_frame\.py|triton/compiler/|\(dynamo_timed\)"
)
"""Calls that load or compile kernels, and frames and annotations of compilers."""

_READS = re.compile(r"^aten::(?:item|_local_scalar_dense|is_nonzero|nonzero)$")
# All that is recorded of .tolist() where there is nothing to copy; ops call it on their way, programs hardly.
_LISTS = re.compile(r"^aten::resolve_neg$")
_OPS = re.compile(r"^aten::")


@analyzer("launches", title="Launches", order=70, tables=TABLES, sums_steps=True)
def launches(run: Run, *, scope: Scope = "all") -> Result:
    """Can the CPU keep the GPU fed?

    Reading:
        A long latency with work in the queue is fine. Short latencies, an empty queue and an idle GPU mean
        that the run is launch-bound.

    Limits:
        Latencies need the clocks of host and GPU to agree; `started before its launch` counts where they do
        not.

    Args:
        run: the ranks.
        scope: "all" or "linked"; only work with a launch call in the trace can be measured either way.

    Returns:
        tables `launches` (summary), `calls` (CPU time by runtime call), `latency_histogram`, and `queue`
        (depth over time, for figures).
    """
    parts: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}
    skips = []
    for trace in run.traces:
        everything = gpu_work(trace, scope)
        work = everything.take(everything.launch >= 0)
        if everything.cpu_only:
            reason = "CPU-only trace: nothing is launched"
            skips.append(Skip(f"rank {trace.meta.rank}", reason))
            continue
        if not len(work.event):
            skips.append(Skip(f"rank {trace.meta.rank}", "no GPU work has its launch call in the trace"))
            continue
        rank, events = trace.meta.rank, trace.arrays
        called = events.start[work.launch]
        latency = events.start[work.event] - called  # also where a step's border cut the work
        kernel_dur = work.dur[work.is_kernel]
        small = kernel_dur < SMALL_NS
        bound, span = launch_bound(everything, called, work.end)
        kernel_time = max(int(kernel_dur.sum()), 1)
        early, small_time = latency < 0, int(kernel_dur[small].sum())
        p50, p99 = map(int, percentiles(np.maximum(latency, 0), 50, 99).tolist())
        rows: list[tuple[str, int, int, float, str]] = [
            ("launched", len(work.event), -1, len(work.event) / len(everything.event),
             "with its launch call; fraction of GPU work"),
            ("latency p50", -1, p50, -1.0, "launch call to start, at least 0, including time in the queue"),
            ("latency p99", -1, p99, -1.0, "the same, 99th percentile"),
            ("started before its launch", int(early.sum()), -1, float(early.mean()),
             "fraction of launches; CPU and GPU clocks disagree: these latencies mean little"),
            ("launch bound", -1, bound, bound / span, "GPU idle, launch queue empty; fraction of wall time"),
            ("small kernels", int(small.sum()), small_time, float(small.sum() / max(len(small), 1)),
             f"kernels under {SMALL_NS // 1000} µs; fraction of launches"),
            ("small kernels, time", int(small.sum()), small_time, small_time / kernel_time,
             "the same; fraction of kernel time"),
        ]  # fmt: skip
        metric, counts, times, fraction, meaning = zip(*rows, strict=True)
        parts["launches"].append(
            {
                "rank": np.full(len(rows), rank),
                "metric": list(metric),
                "count": np.array(counts),
                "dur_ns": np.array(times),
                "fraction": np.array(fraction),
                "meaning": list(meaning),
            }
        )

        calls = unique(work.launch)
        names, group = numbered(events.name[calls])
        dur = events.end[calls] - events.start[calls]
        by_name = stats(group, dur, len(names))
        order = np.argsort(-by_name.total, kind="stable")
        each = [np.sort(dur[group == code]) for code in range(len(names))]
        highest = [own[math.ceil(0.99 * (len(own) - 1))] for own in each]
        parts["calls"].append(
            {
                "rank": np.full(len(order), rank),
                "name": [events.names[code] for code in names[order]],
                "count": by_name.number[order],
                "sum_ns": by_name.total[order],
                "mean_ns": by_name.mean[order],
                "median_ns": by_name.median[order],
                "p99_ns": np.array(highest).astype(np.int64)[order],
                "max_ns": by_name.max[order],
            }
        )

        bucket = np.searchsorted(_EDGES, latency, side="right")
        count = np.bincount(bucket, minlength=len(_BUCKETS)).astype(np.int64)
        parts["latency_histogram"].append(
            {
                "rank": np.full(len(count), rank),
                "bucket": list(_BUCKETS),
                "count": count,
                "fraction_of_launches": count / len(bucket),
            }
        )
        time, depth = _depth(called, work.end)
        # From 0: doubles do not hold nanoseconds since 1970.
        edges = unique(np.linspace(0, time[-1] - time[0], QUEUE_BINS + 1).astype(np.int64)) + time[0]
        if len(edges) < 2:
            edges = np.array([time[0], time[0] + 1])
        area = np.concatenate(([0], np.cumsum(depth[:-1] * np.diff(time))))
        index = np.searchsorted(time, edges, side="right") - 1
        passed = area[index] + depth[index] * (edges - time[index])
        bins = zip(index[:-1], np.searchsorted(time, edges[1:], side="left"), strict=True)
        parts["queue"].append(
            {
                "rank": np.full(len(edges) - 1, rank),
                "ts_ns": edges[:-1] - int(everything.start.min()),
                "depth_max": np.array([depth[low : max(high, low + 1)].max() for low, high in bins]),
                "depth_mean": np.diff(passed) / np.diff(edges),
            }
        )
    return result({name: TABLES[name].concat(rows) for name, rows in parts.items()}, skips, scope=scope)


def launch_bound(everything: Work, called: Int, end: Int) -> tuple[int, int]:
    """Time in which the GPU is idle and at most one launch is under way.

    Args:
        everything: all GPU work.
        called: start of each launch, ns.
        end: of the work that it launched, ns.

    Returns:
        (that time, first start to last end of the GPU work), ns.
    """
    low, high = int(everything.start.min()), int(everything.end.max())
    busy = union(everything.start, everything.end)
    time, depth = _depth(called, end)
    # Before the first launch and after the last launched work the queue is empty as well.
    time = np.concatenate(([min(low, time[0])], time, [max(high, time[-1])]))
    shallow = np.flatnonzero(np.concatenate(([0], depth)) <= 1)
    alone = union(*clip(time[shallow], time[shallow + 1], low, high))
    return alone.total - int(busy.covered(alone.start, alone.end).sum()), max(high - low, 1)


def _depth(called: Int, end: Int) -> tuple[Int, Int]:
    """Number of launched and unfinished pieces of work from each point in time on."""
    begin = np.minimum(called, end)
    time = np.concatenate((begin, end))
    step = np.repeat(np.array([1, -1], dtype=np.int8), [len(begin), len(end)])
    order = ordered(time, step)
    return time[order], np.cumsum(step[order], dtype=np.int64)


def named(events: Events, pattern: re.Pattern[str]) -> Bool:
    """Which events have a name that fits."""
    return marked(events.name, matching(events.names, pattern))


def waiting_calls(trace: Trace, work: Work) -> Bool:
    """Calls in which the host has nothing to do but wait for a GPU: none where there is no GPU."""
    return np.zeros(len(trace.arrays.start), dtype=bool) if work.cpu_only else blocking_calls(trace, work)


def blocking_calls(trace: Trace, work: Work) -> Bool:
    """Calls that wait for the GPU: by name, and copies whose call returned after the copy was done.

    In a CPU-only trace, those in which the host would wait (see reads.py). The profiler's own are not among
    them. Those of all work are found once and kept with the trace.
    """
    if work.cpu_only:
        return reads(trace)
    return trace.once(_all_blocking_calls) if work is trace.work else _blocking_calls(trace, work)


def _all_blocking_calls(trace: Trace) -> Bool:
    return _blocking_calls(trace, trace.work)


def _blocking_calls(trace: Trace, work: Work) -> Bool:
    events = trace.arrays
    mask = events.fitting(BLOCKING, "launch")
    # A memset, or a copy within the GPU, keeps no call waiting, however late that returns.
    inside = fitting(work.names, work.name, _ON_DEVICE)
    # A copy that is a kernel may be one of a graph; what launched that waited for none of them.
    is_copy = ~work.is_kernel | lookup(events.fitting(_COPY_CALL, "launch"), work.launch, False)
    copies = work.take((work.kind == WORK_KINDS.index("memcpy")) & (work.launch >= 0) & is_copy & ~inside)
    mask[copies.launch[events.end[copies.launch] >= copies.end]] = True
    return mask & ~trace.once(profiler_calls)


def profiler_calls(trace: Trace) -> Bool:
    """What the profiler does on the program's threads: its frames, and its waiting at begin and end.

    Kineto waits for the device when it starts and stops: outside of whatever the program does, before its
    first op or behind its last one. Ask with `trace.once(profiler_calls)`.
    """
    events = trace.arrays
    frames = events.fitting(_PROFILER_FRAME, "python")
    steps = events.fitting(STEP_MARK, "annotation")
    ops = np.flatnonzero(events.where("op") | steps)
    begin, end = (int(events.start[ops].min()), int(events.end[ops].max())) if len(ops) else (0, 0)
    waits = events.fitting(DEVICE_SYNCHRONIZE, "launch")
    waits &= (events.end <= begin) | (events.start >= end)
    programs = events.where("op", "annotation", "python") & ~frames
    inside_profiler, inside_program = (
        nearest(events.parent, events.depth, mask) >= 0 for mask in (frames, programs)
    )
    return frames | (waits & (inside_profiler | ~inside_program))


class Overhead(Struct, frozen=True):
    """Events that hold threads up without being on one of them, each kind as a mask over all events."""

    profiler: Bool  # the recording's own: buffers requested and flushed
    loading: Bool  # kernels loaded or compiled by the driver
    queue_full: Bool  # launches that wait for room in the queue


def overhead(events: Events) -> Overhead:
    """The overhead that was recorded, by what it is."""
    every = events.where("overhead")
    loading, full = (events.fitting(pattern, "overhead") for pattern in (_CODE_LOADED, QUEUE_FULL))
    return Overhead(every & ~loading & ~full, loading, full)


def reads(trace: Trace) -> Bool:
    """The ops on which a program's course depends; what an op's work reads on its way is that op's affair."""
    events = trace.arrays
    works = np.zeros(len(events.start), dtype=bool)
    works[trace.work.event] = True
    around = nearest(events.parent, events.depth, works)
    is_read: Bool = named(events, _READS) & (lookup(around, events.parent, -1) < 0)
    is_read |= named(events, _LISTS) & ~lookup(named(events, _OPS), events.parent, False)
    return is_read & events.where("op")

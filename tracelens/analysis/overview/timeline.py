"""Where the wall time of the GPU goes, from the outside; and what was read, what of it could not be used."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracelens.analysis.analyzer import analyzer
from tracelens.analysis.common import HOST, NO_GPU, device_title, no_gpu_work
from tracelens.arrays import Int, unique
from tracelens.table import RANK, Column, Result, Schema, Skip, codes, result, sums
from tracelens.trace import (
    WORK_KINDS,
    Run,
    Scope,
    Trace,
    Union,
    both,
    difference,
    gpu_work,
    recorded_span,
    steps_of,
    union,
)

METRICS = {
    "total": "first start to last end of GPU work; for a step: its window",
    "busy": "any GPU work runs",
    "idle": "total - busy",
    "computation": "a computing kernel runs",
    "comm": "a communication kernel runs",
    "memcpy": "a copy runs",
    "memset": "a memset runs",
    "exposed_comm": "communication without computation",
    "exposed_memcpy": "copies without computation and communication",
    "exposed_memset": "memsets without anything else",
    "unlinked": "work whose launch call is not in the trace",
}
"""Only the exposed ones add up: busy = computation + exposed_comm + exposed_memcpy + exposed_memset."""
TIMELINE = Schema(
    "GPU timeline",
    (
        RANK,
        Column("metric", "str", doc="; ".join(f"{name}: {doc}" for name, doc in METRICS.items())),
        Column("dur_ns", "int64", "ns", "time with the metric's condition true, over the whole trace"),
        Column("fraction_of_total", "float64", "fraction", "share of total"),
    ),
    doc="Exposed means not hidden behind computation: busy = computation + exposed_comm + exposed_memcpy + "
    "exposed_memset. Work is unlinked when it was launched before the recording began.",
)
_IN_STEPS = (
    "total",
    "busy",
    "idle",
    "computation",
    "comm",
    "exposed_comm",
    "memcpy",
    "exposed_memcpy",
    "exposed_memset",
    "unlinked",
)
STEPS = Schema(
    "GPU timeline by step",
    (
        RANK,
        Column(
            "step", "str", doc="step mark, such as ProfilerStep#2; work outside the marks has rows of its own"
        ),
        *(Column(f"{name}_ns", "int64", "ns", METRICS[name]) for name in _IN_STEPS),
        Column("idle_fraction", "float64", "fraction", "share of the step's window"),
    ),
    doc="A step ends at the next one's mark; work that crosses the border counts where it runs.",
    key=("step",),
    absent_is_zero=False,
)
STRIP = Schema(
    "GPU activity by stream",
    (
        RANK,
        Column("device", "int64", doc="GPU index on the host, missing without a GPU", absent=-1),
        Column("stream", "int64", doc="stream of the GPU"),
        Column("kind", "category", doc="kind of most of the slice's busy time"),
        Column("ts_ns", "int64", "ns", "since the rank's first GPU work"),
        Column("dur_ns", "int64", "ns", "length of the slice"),
        Column("busy_fraction", "float64", "fraction", "share of the slice in which the stream is busy"),
    ),
    detail=True,
    key=(),
)
STRIP_BINS = 800
STRIP_STREAMS = 12

TABLES = {"timeline": TIMELINE, "steps": STEPS, "strip": STRIP}

INPUT = Schema(
    "Traces read",
    (
        RANK,
        Column("path", "str", doc="file that was read"),
        Column("format", "str", doc="parser that read it, as in `tracelens list parsers`"),
        Column("device", "str", doc="device that did the work: the GPU, or the CPU in a CPU-only trace"),
        Column("events_read", "int64", "count", "records in the file"),
        Column("events_kept", "int64", "count", "records that became events"),
        Column("events_dropped", "int64", "count", "read = kept + dropped"),
        Column("gpu_events", "int64", "count", "in a CPU-only trace the host ops that count as kernels"),
        Column(
            "linked_fraction", "float64", "fraction", "of GPU events whose launch call or op is in the trace"
        ),
    ),
    key=(),
)
PROBLEMS = Schema(
    "Problems in the traces",
    (
        RANK,
        Column("problem", "str", doc="what is wrong with the events or the file"),
        Column(
            "outcome", "str", doc="dropped: left out; repaired: used after repair; problem: with the file"
        ),
        Column("count", "int64", "count", "affected events"),
        Column(
            "first_byte", "int64", "bytes", "of the first one, missing if unknown", intensive=True, absent=-1
        ),
    ),
    key=("problem", "outcome"),
)

INPUT_TABLES = {"input": INPUT, "losses": PROBLEMS}


@analyzer("timeline", title="GPU timeline", order=10, tables=TABLES, sums_steps=True)
def timeline(run: Run, *, scope: Scope = "all") -> Result:
    """Where does the GPU's wall time go: computation, communication, copies, idle?

    Reading:
        total = busy + idle. Compare `comm` with `exposed_comm`: only exposed time can shorten the step.

    Limits:
        Communication includes waiting for other ranks, see `collectives`.

    Args:
        run: the ranks.
        scope: "all" counts every GPU event, memsets by themselves; "linked" only those whose launch
            call is in the trace, memsets as computation, which is what AMD's TraceLens reports.

    Returns:
        tables `timeline` (rank, metric, dur_ns, fraction), `steps` (the same per step) where steps are
        marked, and `strip` (activity by stream over time, for figures).
    """
    skips: list[Skip] = []
    rows: list[dict[str, Any]] = []
    steps: list[dict[str, Any]] = []
    strips: list[dict[str, Any]] = []
    for trace in run.traces:
        rank, work = trace.meta.rank, gpu_work(trace, scope)
        if not len(work.event):
            skips.append(Skip(f"rank {rank}", no_gpu_work(trace, scope)))
            continue
        steps_of_rank = steps_of(trace)
        low, high = (np.array([time], dtype=np.int64) for time in recorded_span(trace, work))
        metrics = {name: int(dur[0]) for name, dur in _metrics(trace, scope, low, high).items()}
        if not trace.window:  # all of it, also what lies outside of the linked work
            metrics["unlinked"] = _unlinked(trace).total
        hidden = ("memset", "exposed_memset") if scope == "linked" else ()  # memsets are computation there
        shown = {name: dur for name, dur in metrics.items() if name not in hidden}
        dur_ns = np.array(list(shown.values()), dtype=np.int64)
        rows.append(
            {
                "rank": np.full(len(dur_ns), rank),
                "metric": list(shown),
                "dur_ns": dur_ns,
                "fraction_of_total": dur_ns / max(shown["total"], 1),
            }
        )
        if steps_of_rank.marked:
            by_step = _metrics(trace, scope, steps_of_rank.edges[:-1], steps_of_rank.edges[1:])
            steps.append(
                {
                    "rank": np.full(len(steps_of_rank.labels), rank),
                    "step": steps_of_rank.labels,
                    **{f"{name}_ns": by_step[name] for name in _IN_STEPS},
                    "idle_fraction": by_step["idle"] / np.maximum(by_step["total"], 1),
                }
            )
        else:
            skips.append(Skip(f"rank {rank}: steps", "no ProfilerStep marks; call prof.step() once per step"))
        # Activity of each stream; of many streams only the busiest.
        group, (devices, streams) = codes(work.device, work.stream)
        busy = sums(group, work.dur, len(devices))
        drawn = np.sort(np.argsort(-busy, kind="stable")[:STRIP_STREAMS])
        if more := len(busy) - len(drawn):
            skips.append(
                Skip(f"rank {rank}: figure of {more} more streams", "only the busiest streams are drawn")
            )
        begin, finish = int(work.start.min()), int(work.end.max())
        # From 0: doubles do not hold nanoseconds since 1970.
        bins = min(STRIP_BINS, max(finish - begin, 1))
        edges = np.linspace(0, finish - begin, bins + 1).astype(np.int64) + begin
        low, high = edges[:-1], edges[1:]
        for number in drawn:
            # The span cut at `edges`: what each piece is mostly busy with; like neighbors are merged.
            on_stream = work.take(group == number)
            kind = np.stack([on_stream.union(kind).covered(low, high) for kind in WORK_KINDS]).argmax(axis=0)
            busy = on_stream.union().covered(low, high)
            kept = np.flatnonzero(busy > 0)
            # Alike: same kind, and as busy to within a fifth.
            look = kind[kept] * 8 + np.ceil(5 * busy[kept] / np.maximum(high - low, 1)[kept]).astype(np.int64)
            first = np.flatnonzero(np.append(True, (np.diff(kept) > 1) | (np.diff(look) != 0))[: len(kept)])
            last = np.append(first[1:], len(kept))[: len(first)] - 1
            start, end = low[kept[first]], high[kept[last]]
            strips.append(
                {
                    "kind": [WORK_KINDS[code] for code in kind[kept[first]]],
                    "ts_ns": start - begin,
                    "dur_ns": end - start,
                    "busy_fraction": np.add.reduceat(busy[kept], first) / np.maximum(end - start, 1),
                    "rank": np.full(len(start), rank),
                    "device": np.full(len(start), devices[number]),
                    "stream": np.full(len(start), streams[number]),
                }
            )
    tables = {"timeline": TIMELINE.concat(rows)}
    if steps:
        tables["steps"] = STEPS.concat(steps)
    if strips:
        tables["strip"] = STRIP.concat(strips)
    return result(tables, skips, scope=scope)


def _metrics(trace: Trace, scope: Scope, low: Int, high: Int) -> dict[str, Int]:
    """Nanoseconds of each metric in each window."""
    work = gpu_work(trace, scope)
    masks = {kind: work.kind == code for code, kind in enumerate(WORK_KINDS)}
    if scope == "linked":
        masks["computation"] = masks["computation"] | masks["memset"]
        masks["memset"] = np.zeros_like(masks["memset"])
    comp, comm, copy, memset = (union(work.start[masks[kind]], work.end[masks[kind]]) for kind in WORK_KINDS)
    busy = union(work.start, work.end).covered(low, high)
    return {
        "total": high - low,
        "busy": busy,
        "idle": high - low - busy,
        "computation": comp.covered(low, high),
        "comm": comm.covered(low, high),
        "memcpy": copy.covered(low, high),
        "memset": memset.covered(low, high),
        "exposed_comm": difference(comm, comp).covered(low, high),
        "exposed_memcpy": difference(copy, both(comp, comm)).covered(low, high),
        "exposed_memset": difference(memset, both(both(comp, comm), copy)).covered(low, high),
        "unlinked": _unlinked(trace).covered(low, high),
    }


def _unlinked(trace: Trace) -> Union:
    everything = gpu_work(trace)
    return union(everything.start[everything.unlinked], everything.end[everything.unlinked])


@analyzer("input", title="Input", order=7, tables=INPUT_TABLES)
def inputs(run: Run) -> Result:
    """What was read, and was any of it lost?

    Reading:
        `events_dropped` should be 0; `losses` says what was lost and where. GPU work outside
        `linked_fraction` belongs to no op, since its launch call is not in the trace.

    Limits:
        Counts what the file says. `completeness` looks for what the profiler lost without saying.

    Returns:
        tables `input`, one row a trace, and `losses` where events were dropped or mended.
    """
    metas = [trace.meta for trace in run.traces]
    rows, losses, skips = [], [], []
    for trace, meta in zip(run.traces, metas, strict=True):
        work = gpu_work(trace)
        linked = float(work.linked.mean()) if len(work.event) else 0.0
        if work.cpu_only:
            skips.append(Skip(f"rank {meta.rank}: GPU time", NO_GPU))
        # Where devices have other numbers than their properties, they may still all be of one name.
        used = {meta.devices.get(int(device), "") for device in unique(work.device)} - {""}
        if not used and len(set(meta.devices.values())) == 1:
            used = set(meta.devices.values())
        titles = sorted(set(map(device_title, used)))
        if len(unique(work.device)) > 1:
            skips.append(
                Skip(f"rank {meta.rank}: single GPUs", "several GPUs in one trace are treated as one")
            )
        rows.append(
            {
                "rank": np.array([meta.rank]),
                "path": [meta.path],
                "format": [meta.format],
                "device": [HOST if work.cpu_only else ", ".join(titles) or "unknown"],
                "events_read": np.array([meta.read]),
                "events_kept": np.array([meta.kept]),
                "events_dropped": np.array([sum(meta.dropped.values())]),
                "gpu_events": np.array([len(work.event)]),
                "linked_fraction": np.array([linked]),
            }
        )
        entries = [
            (loss, "dropped", count, meta.first_drop.get(loss, -1)) for loss, count in meta.dropped.items()
        ]
        entries += [(loss, "repaired", count, -1) for loss, count in meta.repaired.items()]
        entries += [(loss, "problem", 0, -1) for loss in meta.problems]
        losses += [(meta.rank, *entry) for entry in entries]
    tables = {"input": INPUT.concat(rows)}
    if losses:
        rank, loss, outcome, count, first = zip(*losses, strict=True)
        tables["losses"] = PROBLEMS.table(
            {
                "rank": np.array(rank),
                "problem": list(loss),
                "outcome": list(outcome),
                "count": np.array(count),
                "first_byte": np.array(first),
            }
        )
    return result(tables, skips)

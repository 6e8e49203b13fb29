"""Metrics of each step, by which two runs are compared; and the pace of steps timed without the profiler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tracelens.analysis.analyzer import analyzer
from tracelens.analysis.common import no_gpu_work
from tracelens.analysis.moe import STAGES, UNATTRIBUTED, blocking, regions, why_no_layer
from tracelens.arrays import Int, lookup, unique
from tracelens.table import RANK, STEP, Coded, Column, Result, Schema, Skip, codes, result, sums
from tracelens.trace import (
    WORK_KINDS,
    PacePart,
    Run,
    Scope,
    Steps,
    Trace,
    Work,
    gpu_work,
    launched_in,
    mean_step_ns,
    settled,
    shares,
    steps_of,
    union,
)

Values = NDArray[Any]

METRIC = "step.pace"

METRICS = {
    METRIC: "duration of a step without the profiler, if the recorder timed some; `step` is then the part of "
    "the loop",
    "step.time": "duration of the step",
    "busy.time": "any GPU work runs",
    "idle.time": "no GPU work runs",
    "computation.time": "a computing kernel runs",
    "comm.time": "a communication kernel runs",
    "exposed_comm.time": "communication runs, computation does not",
    "memcpy.time": "a copy runs, without computation or communication",
    "memset.time": "a memset runs, and nothing else",
    "idle.fraction": "share of the step",
    "comm.fraction": "share of the step",
    "exposed_comm.fraction": "share of the step",
    "kernel.count": "kernels launched in the step",
    "launch.count": "calls that launched GPU work",
    "comm.count": "communication kernels",
    "comm.bytes": "input of this rank's collectives, if all of them are recorded",
    "blocking_calls": "calls in which the host waits for the GPU, or would with one",
    "moe.time": "MoE layers have work running",
    "moe.STAGE.time": "the stage has work running: " + ", ".join(name.replace(" ", "_") for name in STAGES),
    "moe.compiled_unknown.time": "compiled regions of unknown stage have backward work running, if there "
    "are any",
    "moe.blocking_calls": "blocking calls in MoE layers",
    "memory.peak": "peak GPU memory allocated, if memory events are recorded",
    "category[NAME].time": "exclusive time of a kernel class, see breakdown",
    "category[NAME].count": "kernels, copies and memsets of the class",
    "kernel[NAME].time": "exclusive time of kernels of this name",
    "op[NAME].time": "exclusive time of work launched directly by ops of this name",
    "op[NAME].count": "calls that launched work",
}
"""Times: what runs in the step's window. Counts: what the host launched between its marks."""
STEPS = Schema(
    "Steps",
    (
        RANK,
        STEP,
        Column("dur_ns", "int64", "ns", "wall time of the step on the GPU"),
        Column("computation_ns", "int64", "ns", METRICS["computation.time"]),
        Column("comm_ns", "int64", "ns", METRICS["comm.time"]),
        Column("exposed_comm_ns", "int64", "ns", METRICS["exposed_comm.time"]),
        Column("idle_ns", "int64", "ns", "no GPU work runs"),
        Column("idle_fraction", "float64", "fraction", "share of the step"),
        Column("kernels", "int64", "count", METRICS["kernel.count"]),
        Column("launches", "int64", "count", f"{METRICS['launch.count']}; missing: none recorded", absent=-1),
        Column("blocking_calls", "int64", "count", METRICS["blocking_calls"]),
    ),
    doc="Whole steps only. A step begins at its mark, or when the GPU has finished the earlier steps. "
    "Counts: launched by the host between the marks.",
    key=("step",),
    absent_is_zero=False,
)
STEP_METRICS = Schema(
    "Metrics of each step",
    (
        RANK,
        STEP,
        Column("metric", "category", doc="; ".join(f"{name}: {doc}" for name, doc in METRICS.items())),
        Column("value", "float64", doc="value of the metric, in `unit`"),
        Column("unit", "category", doc="of the value: ns, count, bytes or fraction"),
    ),
    detail=True,
)
MEMORY_EVENT = "[memory]"
_UNITS = {
    "time": "ns",
    "pace": "ns",
    "count": "count",
    "bytes": "bytes",
    "peak": "bytes",
    "fraction": "fraction",
}


class Share(Struct, frozen=True):
    """Exclusive time: one entry a piece of work and step that overlap."""

    row: Int
    step: Int
    dur: Int


PACE = Schema(
    "Steps without the profiler",
    (
        RANK,
        Column("part", "category", doc="part of the loop: before or after the recorded steps"),
        Column("first_step", "int64", doc="number of the part's first step, from 0"),
        Column("steps", "int64", "count", "steps timed together"),
        Column("step_ns", "float64", "ns", "mean of these steps"),
        Column("profiled_ns", "float64", "ns", "mean of the rank's recorded steps"),
        Column("profiler_cost", "float64", "ratio", "profiled / step - 1"),
        Column(
            "tokens_per_s", "float64", doc="of all ranks, without the profiler; missing if unknown", absent=-1
        ),
        Column(
            "samples_per_s",
            "float64",
            doc="of all ranks, without the profiler; missing if unknown",
            absent=-1,
        ),
    ),
    doc="Measured by the recorder around the recorded steps, which the profiler slows down. Parts of "
    "fewer than five steps count only if no part is longer.",
    key=("part", "first_step"),
    absent_is_zero=False,
)

TABLES = {"steps": STEPS, "metrics": STEP_METRICS, "pace": PACE}

NO_PACE = "no step was timed without the profiler; record with tracelens.record(..., pace_steps=20)"
PACE_META = ("step_without_profiler_ns", "profiler_cost", "tokens_per_s", "step_without_profiler_range_ns")
"""What the meta of a result or report says of the pace."""

PARTS_DIFFER = 0.1
"""From this relative distance of the parts on their mean alone would mislead: two parts of one run differ by
1 to 4% on a quiet machine."""


class PaceSummary(Struct, frozen=True):
    """What the steps of a run take without the profiler and with it."""

    step_ns: float  # without it, mean of the timed steps of settled parts and of the ranks
    profiled_ns: float  # mean of the recorded steps of the same ranks
    tokens_per_s: float  # of all ranks together, without the profiler; -1 where the program did not tell
    steps: int  # timed, on the rank with fewest
    parts_ns: tuple[float, ...]  # the step of each settled part, mean of the ranks

    @property
    def profiler_cost(self) -> float:
        """Profiled / unprofiled - 1."""
        return self.profiled_ns / self.step_ns - 1

    def meta(self) -> dict[str, Any]:
        """PACE_META with its values, as far as they are told; the range only where parts differ much."""
        told: list[Any] = [round(self.step_ns), self.profiler_cost, None, None]
        if self.tokens_per_s >= 0:
            told[2] = self.tokens_per_s
        low_ns, high_ns = min(self.parts_ns), max(self.parts_ns)
        if high_ns > (1 + PARTS_DIFFER) * low_ns:
            told[3] = [round(low_ns), round(high_ns)]
        return {name: value for name, value in zip(PACE_META, told, strict=True) if value is not None}


@analyzer("steps", title="Steps", order=25, tables=TABLES)
def steps(run: Run, *, scope: Scope = "all") -> Result:
    """What does each step cost in time, kernels, communication and blocking calls?

    Reading:
        Compare steps: a longer one with the same kernels lost time to idle GPUs or communication.

    Limits:
        Partly recorded steps are left out. Recorded steps include the cost of the profiler.

    Args:
        run: the ranks.
        scope: "all", or "linked" for work whose launch call is in the trace.

    Returns:
        tables `steps`, one row a rank and whole step; `metrics` (rank, step, metric, value, unit) with
        all that `tracelens gate` can ask for, see METRICS (ops and classes without work in a step have no
        row there); and `pace`, one row a rank and part of its loop that was timed without the profiler.
    """
    rows: list[dict[str, Any]] = []
    metrics: list[dict[str, Any]] = []
    paces: list[dict[str, Any]] = []
    skips: list[Skip] = []
    for trace in run.traces:
        rank, work = trace.meta.rank, gpu_work(trace, scope)
        if not len(work.event):
            skips.append(Skip(f"rank {rank}", no_gpu_work(trace, scope)))
            continue
        windows = steps_of(trace).only_whole()
        if not windows.marked:
            reason = "no ProfilerStep marks: the recording is one step; call prof.step() once per step"
            skips.append(Skip(f"rank {rank}: steps", reason))
        step = launched_in(trace, windows, work.event)  # -1 for work of no step
        # One value a step of each metric that does not name an op or a class; and why others are not there.
        low, high = windows.edges[:-1], windows.edges[1:]
        length = high - low
        busy = work.union().covered(low, high)
        computation, comm = (work.union(kind).covered(low, high) for kind in ("computation", "comm"))
        useful = work.union("computation", "comm").covered(low, high)
        moved = work.union("computation", "comm", "memcpy").covered(low, high)
        idle, exposed, nonzero_length = length - busy, useful - computation, np.maximum(length, 1)
        events, is_comm = trace.arrays, work.kind == WORK_KINDS.index("comm")
        calls = trace.once(blocking)
        waits = ~calls.repeats
        values: dict[str, Values] = {
            "step.time": length,
            "busy.time": busy,
            "idle.time": idle,
            "computation.time": computation,
            "comm.time": comm,
            "exposed_comm.time": exposed,
            "memcpy.time": moved - useful,
            "memset.time": busy - moved,
            "idle.fraction": idle / nonzero_length,
            "comm.fraction": comm / nonzero_length,
            "exposed_comm.fraction": exposed / nonzero_length,
            "kernel.count": _count(step[work.is_kernel], windows),
            "launch.count": _count(
                _step_at(windows, events.start[unique(work.launch[work.launch >= 0])]), windows
            ),
            "comm.count": _count(step[is_comm], windows),
            "blocking_calls": _count(_step_at(windows, calls.start[waits]), windows),
        }
        lacking: dict[str, str] = {}
        if len(work.launch) and (work.launch < 0).all():
            del values["launch.count"]
            lacking["launch.count"] = "no kernel has its launch call in the trace"
        # Bytes that collectives were given, by the step of their kernel.
        if is_comm.any():
            table = trace.tables["collectives"]
            row = lookup(events.places(work.event), table.array("kernel_id"), -1)
            known, size = row >= 0, table.array("in_bytes")
            if known.any() and (size[known] >= 0).all():
                of_row = step[row[known]]
                values["comm.bytes"] = sums(of_row[of_row >= 0], size[known][of_row >= 0], len(low))
            else:
                lacking["comm.bytes"] = "sizes of collectives are not recorded"
        else:
            lacking["comm.bytes"] = "no communication"
        # Time of the MoE layers' stages, what overlaps in each of them, and the blocking calls in the layers.
        layers, all_work = trace.once(regions), trace.work
        counted = (layers.stage >= 0) & (all_work.linked | (scope == "all"))
        if counted.any():
            masks = {"moe.time": counted & (layers.stage != UNATTRIBUTED)}
            for stage, name in enumerate(STAGES):
                masks[f"moe.{name.replace(' ', '_')}.time"] = counted & (layers.stage == stage)
            unknown = counted & (layers.stage == UNATTRIBUTED)
            if unknown.any():
                masks["moe.compiled_unknown.time"] = unknown
            for name, mask in masks.items():
                values[name] = union(all_work.start[mask], all_work.end[mask]).covered(low, high)
            in_layers = waits & (calls.layer_pass >= 0)
            values["moe.blocking_calls"] = _count(_step_at(windows, calls.start[in_layers]), windows)
        else:
            lacking["moe"] = why_no_layer(trace)
        # Most that was allocated on the GPU in each step, with what was allocated before it began.
        allocated = trace.tables["events"].array("bytes")
        memory_event = events.names.index(MEMORY_EVENT) if MEMORY_EVENT in events.names else -1
        rows_of_memory = np.flatnonzero((events.name == memory_event) & (allocated >= 0))
        if len(rows_of_memory):
            by_time = rows_of_memory[np.argsort(events.start[rows_of_memory], kind="stable")]
            times = events.start[by_time]
            first = np.maximum(np.searchsorted(times, windows.marks[:-1], side="right") - 1, 0)
            last = np.maximum(np.searchsorted(times, windows.marks[1:], side="left"), first + 1)
            ends = np.stack([first, last], axis=1).ravel()
            values["memory.peak"] = np.maximum.reduceat(np.append(allocated[by_time], 0), ends)[::2]
        else:
            lacking["memory.peak"] = (
                "the trace has no memory events of the GPU; record with profile_memory=True"
            )
        skips += [Skip(f"rank {rank}: {subject}", reason) for subject, reason in lacking.items()]
        # Rows of STEPS of one rank.
        columns = ("computation", "comm", "exposed_comm", "idle")
        rows.append(
            {
                "rank": np.full(len(windows.labels), rank),
                "step": list(windows.labels),
                "dur_ns": values["step.time"],
                **{f"{name}_ns": values[f"{name}.time"] for name in columns},
                "idle_fraction": values["idle.fraction"],
                "kernels": values["kernel.count"],
                "launches": values.get("launch.count", np.full(len(windows.labels), -1)),
                "blocking_calls": values["blocking_calls"],
            }
        )
        metrics.append(_metric_rows(trace, work, step, windows, values))
        if trace.meta.pace:
            paces.append(pace_rows(rank, trace.meta.pace, float(values["step.time"].mean())))
            parts = settled(trace.meta.pace)
            metrics.append(
                {
                    "rank": np.full(len(parts), rank),
                    "step": [part.name for part in parts],
                    "metric": [METRIC] * len(parts),
                    "value": [part.step_ns for part in parts],
                    "unit": ["ns"] * len(parts),
                }
            )
        else:
            skips.append(Skip(f"rank {rank}: {METRIC}", NO_PACE))
    tables = {"steps": STEPS.concat(rows), "metrics": STEP_METRICS.concat(metrics)}
    summary = pace_summary(run)
    if summary is None or not paces:
        return result(tables, skips, scope=scope)
    return result({**tables, "pace": PACE.concat(paces)}, skips, scope=scope, **summary.meta())


def _step_at(windows: Steps, times: Int) -> Int:
    """The step in which the host was at each of these times, -1 for none; the last mark counts."""
    if not windows.marked:  # the host may be done before the GPU begins
        return np.zeros(len(times), dtype=np.int64)
    inside = (times >= windows.marks[0]) & (times <= windows.marks[-1])
    return np.where(inside, windows.begun_at(times), -1)


def _count(step: Int, windows: Steps) -> Int:
    return np.bincount(step[step >= 0], minlength=len(windows.labels)).astype(np.int64)


def _metric_rows(
    trace: Trace, work: Work, step: Int, windows: Steps, by_metric: dict[str, Values]
) -> dict[str, Any]:
    """Rows of STEP_METRICS of one rank: one value a step `by_metric`, then those of classes, kernels, ops."""
    count = len(windows.labels)
    metrics: list[str] = list(by_metric)
    metric = [np.repeat(np.arange(len(by_metric)), count)]
    steps = [np.tile(np.arange(count), len(by_metric))]
    values = [np.asarray(value, dtype=np.float64) for value in by_metric.values()]

    def add(form: str, texts: list[str], code: Int, step_of_row: Int, value: Int) -> None:
        distinct, position = np.unique(code, return_inverse=True)
        metric.append(position + len(metrics))
        metrics.extend(form.format(texts[number]) for number in distinct.tolist())
        steps.append(step_of_row)
        values.append(value.astype(np.float64))

    share = Share(*shares(work.start, work.end, work.kind.astype(np.int64), windows.edges))
    names = trace.arrays.names
    op = lookup(trace.arrays.name, work.op, -1).astype(np.int64)
    calls, first = np.unique(work.op, return_index=True)
    first = first[calls >= 0]  # of several pieces of work of one call
    everything = np.arange(len(work.event))
    kernel = np.where(work.is_kernel, trace.arrays.name[work.event].astype(np.int64), -1)
    for form, texts, key, counted in (
        ("category[{}]", work.categories, work.category.astype(np.int64), everything),
        ("kernel[{}]", names, kernel, everything[:0]),  # times only: names of kernels are long
        ("op[{}]", names, op, first),
    ):
        keep = (key[share.row] >= 0) & (share.dur > 0)
        group, (code, step_of_row) = codes(key[share.row][keep], share.step[keep])
        add(f"{form}.time", texts, code, step_of_row, sums(group, share.dur[keep], len(code)))
        keep = (key[counted] >= 0) & (step[counted] >= 0)
        group, (code, step_of_row) = codes(key[counted][keep], step[counted][keep])
        add(f"{form}.count", texts, code, step_of_row, np.bincount(group, minlength=len(code)))
    which = np.concatenate(metric)
    units = [_UNITS.get(name.rpartition(".")[2], "count") for name in metrics]
    return {
        "rank": np.full(len(which), trace.meta.rank),
        "step": Coded(np.concatenate(steps), windows.labels),
        "metric": Coded.used(which, metrics),
        "value": np.concatenate(values),
        "unit": Coded.used(which, units),
    }


def pace_summary(run: Run) -> PaceSummary | None:
    """The pace of a run, None where no rank has one and a recorded step."""
    timed = [(trace, steps_of(trace).only_whole()) for trace in run.traces if trace.meta.pace]
    traces = [trace for trace, windows in timed if len(windows.labels)]
    if not traces:
        return None
    parts = [part for trace in traces for part in settled(trace.meta.pace) if part.tokens >= 0]
    dur_ns = sum(part.dur_ns for part in parts)
    by_name: dict[str, list[float]] = {}
    for trace in traces:
        for part in settled(trace.meta.pace):
            by_name.setdefault(part.name, []).append(part.step_ns)
    return PaceSummary(
        step_ns=float(np.mean([mean_step_ns(trace.meta.pace) for trace in traces])),
        profiled_ns=float(np.mean([np.diff(windows.edges).mean() for _, windows in timed if windows.labels])),
        tokens_per_s=sum(part.tokens for part in parts) / dur_ns * 1e9 if parts else -1.0,
        steps=min(sum(part.steps for part in settled(trace.meta.pace)) for trace in traces),
        parts_ns=tuple(float(np.mean(of_ranks)) for of_ranks in by_name.values()),
    )


def pace_rows(rank: int, parts: Sequence[PacePart], profiled_ns: float) -> dict[str, Any]:
    """Rows of PACE of one rank."""
    step_ns = np.array([part.step_ns for part in parts])
    return {
        "rank": np.full(len(parts), rank),
        "part": [part.name for part in parts],
        "first_step": [part.first for part in parts],
        "steps": [part.steps for part in parts],
        "step_ns": step_ns,
        "profiled_ns": np.full(len(parts), profiled_ns),
        "profiler_cost": profiled_ns / step_ns - 1,
        "tokens_per_s": [part.per_s(part.tokens) for part in parts],
        "samples_per_s": [part.per_s(part.samples) for part in parts],
    }

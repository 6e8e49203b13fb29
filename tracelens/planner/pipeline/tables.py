"""The tables of simulated schedules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tracelens.arrays import Int
from tracelens.planner.pipeline.schedule import BACKWARD, FORWARD, PHASES, WEIGHT
from tracelens.planner.pipeline.simulate import Played
from tracelens.planner.pipeline.times import ChunkTimes
from tracelens.table import Column, Schema, Table

_SCHEDULE = Column("schedule", "category", doc="such as 1f1b or interleaved")
_STAGE = Column("stage", "int64", doc="position in the pipeline, from 0")

SUMMARY = Schema(
    "Schedules",
    (
        _SCHEDULE,
        Column("chunks", "int64", "count", "VPP, model chunks per stage"),
        Column("makespan_ns", "int64", "ns", "from the first forward to the last pass of any stage"),
        Column("step_ns", "int64", "ns", "makespan plus the measured rest of the step"),
        Column("speedup", "float64", doc="makespan of the first schedule / this makespan"),
        Column("bubble_fraction", "float64", "fraction", "idle share of the makespan, mean over stages"),
        Column("bubble_ideal_ratio", "float64", "ratio", "idle time / busy time"),
        Column(
            "longest_ns",
            "int64",
            "ns",
            "longest time from the first to the last pass of a stage: the makespan if each stage starts the "
            "next step as soon as it is done",
        ),
        Column("peak_chunks", "int64", "count", "in flight, worst stage"),
        Column("peak_microbatches", "float64", doc="peak_chunks / chunks"),
        Column("peak_bytes", "int64", "bytes", "activations in flight, worst stage"),
    ),
    doc="The bubble is the idle time of stages, as a share of the makespan or, as in Megatron-LM, of "
    "the busy time. A micro-batch chunk is in flight from its forward to the end of its backward.",
)
STAGES = Schema(
    "Stages",
    (
        _SCHEDULE,
        _STAGE,
        Column("forward_ns", "int64", "ns", "all forwards; overlapped pairs in proportion"),
        Column("backward_ns", "int64", "ns", "all backwards"),
        Column("idle_ns", "int64", "ns", "of the makespan"),
        Column("idle_fraction", "float64", "fraction", "of the makespan"),
        Column("start_ns", "int64", "ns", "of the first pass"),
        Column("end_ns", "int64", "ns", "of the last pass"),
        Column("peak_chunks", "int64", "count", "in flight at once"),
        Column("peak_bytes", "int64", "bytes", "activations in flight at once"),
    ),
    doc="Idle time is before, between and after the passes of a stage.",
    brief=True,
)
PARTITION = Schema(
    "Partition",
    (
        _SCHEDULE,
        Column("position", "int64", doc="position of the chunk in the model"),
        Column("stage", "int64", doc="stage that holds the chunk"),
        Column("chunk", "int64", doc="number on its stage"),
        Column("first_layer", "int64", doc="-1 if the chunk has none, or layers are unknown"),
        Column("layers", "int64", "count", "-1 if unknown"),
        Column("forward_ns", "int64", "ns", "per micro-batch, mean"),
        Column("backward_ns", "int64", "ns", "per micro-batch, mean"),
    ),
    doc="The first chunk includes the embedding, the last chunk head and loss.",
    brief=True,
)
SPANS = Schema(
    "Passes",
    (
        _SCHEDULE,
        Column("rank", "int64", doc="stage; one rank each"),
        _STAGE,
        Column("chunk", "int64", doc="number on its stage"),
        Column("microbatch", "int64", doc="in the step, from 0"),
        Column("phase", "category", doc=", ".join(PHASES)),
        Column("ts_ns", "int64", "ns", "since the first forward"),
        Column("dur_ns", "int64", "ns", "duration of the pass"),
        Column("paired", "bool", doc="overlaps with another pass of the stage"),
    ),
    detail=True,
    key=(),
)
IN_FLIGHT = Schema(
    "In flight over time",
    (
        _SCHEDULE,
        Column("rank", "int64", doc="stage; one rank each"),
        Column("ts_ns", "int64", "ns", "start of this state"),
        Column("chunks", "int64", "count", "micro-batch chunks in flight"),
        Column("bytes", "int64", "bytes", "activations of these chunks, -1 if unknown"),
    ),
    detail=True,
    key=(),
)
CHECK = Schema(
    "Simulation check",
    (
        Column("ranks", "category", doc="ranks of the stages"),
        Column("step", "category", doc="recorded step that is simulated"),
        Column("times", "category", doc="pass times: measured, or means"),
        Column("measured_ns", "int64", "ns", "from the first forward to the last backward"),
        Column("simulated_ns", "int64", "ns", "the same by simulation"),
        Column("offset", "float64", "ratio", "simulated / measured - 1"),
    ),
    doc="Simulates the recorded order with the measured pass times; the offset is waiting that neither "
    "passes nor messages explain. The mean of equal layers shows how far to trust another partition, which "
    "assumes that layers of a kind take equally long on all ranks.",
)

TABLES = {
    "summary": SUMMARY,
    "stages": STAGES,
    "partition": PARTITION,
    "check": CHECK,
    "spans": SPANS,
    "in_flight": IN_FLIGHT,
}


class Case(NamedTuple):
    """A simulated schedule.

    Attributes:
        name: of the schedule.
        played: its passes.
        chunks: mean times of the chunks.
        shares: layers of each chunk, empty if unknown.
        chunk_bytes: activations of a micro-batch in each chunk, empty if unknown.
    """

    name: str
    played: Played
    chunks: ChunkTimes
    shares: Sequence[int]
    chunk_bytes: Sequence[int]


class Held(NamedTuple):
    """Chunks and bytes in flight on a stage over time; one element per change."""

    time: Int
    chunks: Int
    bytes: Int


def held(case: Case, stage: int) -> Held:
    """What is in flight on a stage: each chunk from the start of its forward to the end of its backward."""
    played = case.played
    last = PHASES.index(WEIGHT if played.schedule.splits else BACKWARD)
    of_stage = played.of(stage)
    begun = of_stage & (played.phase == PHASES.index(FORWARD))
    ended = of_stage & (played.phase == last)
    size = np.array(case.chunk_bytes or [0] * played.schedule.count, dtype=np.int64)
    time = np.concatenate((played.start[begun], played.end[ended]))
    chunks = np.concatenate((np.ones(begun.sum(), np.int64), -np.ones(ended.sum(), np.int64)))
    sizes = np.concatenate((size[played.position[begun]], -size[played.position[ended]]))
    # At equal times the pass that ends comes first: it frees the memory for the pass that begins.
    order = np.lexsort((chunks, time))
    return Held(time[order], np.cumsum(chunks[order]), np.cumsum(sizes[order]))


def summary(cases: Sequence[Case], rest_ns: int) -> Table:
    """SUMMARY of all cases."""
    rows = [_summary(case, rest_ns) for case in cases]
    first = rows[0]["makespan_ns"]
    for row in rows:
        row["speedup"] = first / row["makespan_ns"]
    return SUMMARY.from_rows(rows)


def _summary(case: Case, rest_ns: int) -> dict[str, Any]:
    played, schedule = case.played, case.played.schedule
    busy = sum(played.busy(stage) for stage in range(schedule.stages))
    stage_ns = played.makespan * schedule.stages
    windows = [
        int(played.end[played.of(stage)].max() - played.start[played.of(stage)].min())
        for stage in range(schedule.stages)
    ]
    peaks = [held(case, stage) for stage in range(schedule.stages)]
    most = max(int(holding.chunks.max()) for holding in peaks)
    return {
        "schedule": case.name,
        "chunks": schedule.chunks,
        "makespan_ns": played.makespan,
        "step_ns": played.makespan + rest_ns if rest_ns >= 0 else -1,
        "bubble_fraction": (stage_ns - busy) / stage_ns,
        "bubble_ideal_ratio": (stage_ns - busy) / max(busy, 1),
        "longest_ns": max(windows),
        "peak_chunks": most,
        "peak_microbatches": most / schedule.chunks,
        "peak_bytes": max(int(holding.bytes.max()) for holding in peaks) if case.chunk_bytes else -1,
    }


def stages(cases: Sequence[Case]) -> Table:
    """STAGES of all cases."""
    return STAGES.from_rows(
        [_stage(case, stage) for case in cases for stage in range(case.played.schedule.stages)]
    )


def _stage(case: Case, stage: int) -> dict[str, Any]:
    played = case.played
    of_stage = played.of(stage)
    busy = played.busy(stage)
    dur_ns = played.end - played.start
    forward = int(dur_ns[of_stage & (played.phase == PHASES.index(FORWARD))].sum())
    backward = int(dur_ns[of_stage & (played.phase != PHASES.index(FORWARD))].sum())
    # Overlapped pairs share their time in proportion to forward and backward.
    forward = round(busy * forward / max(forward + backward, 1))
    holding = held(case, stage)
    return {
        "schedule": case.name,
        "stage": stage,
        "forward_ns": forward,
        "backward_ns": busy - forward,
        "idle_ns": played.makespan - busy,
        "idle_fraction": (played.makespan - busy) / played.makespan,
        "start_ns": int(played.start[of_stage].min()),
        "end_ns": int(played.end[of_stage].max()),
        "peak_chunks": int(holding.chunks.max()),
        "peak_bytes": int(holding.bytes.max()) if case.chunk_bytes else -1,
    }


def partition(cases: Sequence[Case]) -> Table:
    """PARTITION of all cases."""
    rows = []
    for case in cases:
        positions = case.played.schedule.positions
        chunk_at = {
            position: (stage, chunk)
            for stage, stage_positions in enumerate(positions)
            for chunk, position in enumerate(stage_positions)
        }
        first = 0
        for position in sorted(chunk_at):
            share = case.shares[position] if case.shares else -1
            rows.append(
                {
                    "schedule": case.name,
                    "position": position,
                    "stage": chunk_at[position][0],
                    "chunk": chunk_at[position][1],
                    "first_layer": first if share > 0 else -1,
                    "layers": share,
                    "forward_ns": int(case.chunks.forward[position]),
                    "backward_ns": int(case.chunks.backward[position]),
                }
            )
            first += max(share, 0)
    return PARTITION.from_rows(rows)


def spans(cases: Sequence[Case]) -> Table:
    """SPANS of all cases."""
    parts = []
    for case in cases:
        played = case.played
        key = np.stack((played.stage, played.start))
        _, group, size = np.unique(key, axis=1, return_inverse=True, return_counts=True)
        long = played.end > played.start
        parts.append(
            {
                "schedule": [case.name] * len(played.start),
                "rank": played.stage,
                "stage": played.stage,
                "chunk": played.chunk,
                "microbatch": played.microbatch,
                "phase": [PHASES[code] for code in played.phase.tolist()],
                "ts_ns": played.start,
                "dur_ns": played.end - played.start,
                "paired": (size[group.ravel()] > 1) & long,
            }
        )
    return SPANS.table(_stacked(parts))


def in_flight(cases: Sequence[Case]) -> Table:
    """IN_FLIGHT of all cases."""
    parts = []
    for case in cases:
        for stage in range(case.played.schedule.stages):
            holding = held(case, stage)
            parts.append(
                {
                    "schedule": [case.name] * len(holding.time),
                    "rank": np.full(len(holding.time), stage),
                    "ts_ns": holding.time,
                    "chunks": holding.chunks,
                    "bytes": holding.bytes if case.chunk_bytes else np.full(len(holding.time), -1),
                }
            )
    return IN_FLIGHT.table(_stacked(parts))


def _stacked(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        name: np.concatenate([part[name] for part in parts])
        if isinstance(parts[0][name], np.ndarray)
        else [value for part in parts for value in part[name]]
        for name in parts[0]
    }

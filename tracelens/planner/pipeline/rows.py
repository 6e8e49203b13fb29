"""The rows of the tables of simulated schedules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tracelens.arrays import Int
from tracelens.planner.pipeline.schedule import BACKWARD, FORWARD, PHASES, WEIGHT
from tracelens.planner.pipeline.simulate import Played
from tracelens.planner.pipeline.tables import IN_FLIGHT, PARTITION, SPANS, STAGES, SUMMARY
from tracelens.planner.pipeline.times import ChunkTimes
from tracelens.table import Table


class Case(NamedTuple):
    """A schedule that was played.

    Attributes:
        name: of the schedule.
        played: its passes.
        chunks: mean times of the chunks.
        shares: layers of each chunk, empty where not known.
        chunk_bytes: activations of a micro-batch in each chunk, empty where not known.
    """

    name: str
    played: Played
    chunks: ChunkTimes
    shares: Sequence[int]
    chunk_bytes: Sequence[int]


class Held(NamedTuple):
    """What a stage holds over time; one element a change."""

    time: Int
    chunks: Int
    bytes: Int


def held(case: Case, stage: int) -> Held:
    """Chunks and bytes in flight on a stage: from the begin of a forward to the end of its backward."""
    played = case.played
    last = PHASES.index(WEIGHT if played.schedule.splits else BACKWARD)
    of_stage = played.of(stage)
    begun = of_stage & (played.phase == PHASES.index(FORWARD))
    ended = of_stage & (played.phase == last)
    size = np.array(case.chunk_bytes or [0] * played.schedule.count, dtype=np.int64)
    time = np.concatenate((played.start[begun], played.end[ended]))
    chunks = np.concatenate((np.ones(begun.sum(), np.int64), -np.ones(ended.sum(), np.int64)))
    sizes = np.concatenate((size[played.position[begun]], -size[played.position[ended]]))
    # What ends frees its memory for what begins at the same time.
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
    rows = [_stage(case, stage) for case in cases for stage in range(case.played.schedule.stages)]
    return STAGES.from_rows(rows)


def _stage(case: Case, stage: int) -> dict[str, Any]:
    played = case.played
    of_stage = played.of(stage)
    busy = played.busy(stage)
    dur_ns = played.end - played.start
    forward = int(dur_ns[of_stage & (played.phase == PHASES.index(FORWARD))].sum())
    backward = int(dur_ns[of_stage & (played.phase != PHASES.index(FORWARD))].sum())
    # The two of a pair share its time; by their sums it is cut in proportion.
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
                    "place": position,
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
    return SPANS.concat(parts)


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
    return IN_FLIGHT.concat(parts)

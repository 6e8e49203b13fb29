"""Steps timed without the profiler, beside the recorded ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracelens.table import RANK, Column, Schema
from tracelens.trace import PacePart, Run, mean_step_ns, settled, steps_of

METRIC = "step.pace"

NO_PACE = "no step was timed without the profiler; record with tracelens.record(..., pace_steps=20)"

PACE_META = ("step_without_profiler_ns", "profiler_cost", "tokens_per_s")
"""What the meta of a result or report says of the pace."""

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
        Column("tokens_per_s", "float64", doc="of all ranks, without the profiler; -1 if unknown"),
        Column("samples_per_s", "float64", doc="of all ranks, without the profiler; -1 if unknown"),
    ),
    doc="Measured by the recorder around the recorded steps, which the profiler slows down. Parts of "
    "fewer than five steps count only if no part is longer.",
    key=("part", "first_step"),
    absent_is_zero=False,
)


@dataclass(frozen=True)
class PaceSummary:
    """What the steps of a run take without the profiler and with it.

    Attributes:
        step_ns: without it, mean of the timed steps of settled parts and of the ranks.
        profiled_ns: mean of the recorded steps of the same ranks.
        tokens_per_s: of all ranks together, without the profiler; -1 where the program did not tell.
        steps: timed, on the rank with fewest.
    """

    step_ns: float
    profiled_ns: float
    tokens_per_s: float
    steps: int

    @property
    def profiler_cost(self) -> float:
        """Profiled / unprofiled - 1."""
        return self.profiled_ns / self.step_ns - 1

    def meta(self) -> dict[str, Any]:
        """PACE_META with its values, as far as they are told."""
        values = (round(self.step_ns), self.profiler_cost, self.tokens_per_s)
        shown = values if self.tokens_per_s >= 0 else values[:-1]
        return dict(zip(PACE_META, shown, strict=False))


def pace_summary(run: Run) -> PaceSummary | None:
    """The pace of a run, None where no rank has one and a recorded step."""
    timed = [(trace, steps_of(trace).only_whole()) for trace in run.traces if trace.meta.pace]
    traces = [trace for trace, windows in timed if len(windows.labels)]
    if not traces:
        return None
    parts = [part for trace in traces for part in settled(trace.meta.pace) if part.tokens >= 0]
    dur_ns = sum(part.dur_ns for part in parts)
    return PaceSummary(
        step_ns=float(np.mean([mean_step_ns(trace.meta.pace) for trace in traces])),
        profiled_ns=float(np.mean([np.diff(windows.edges).mean() for _, windows in timed if windows.labels])),
        tokens_per_s=sum(part.tokens for part in parts) / dur_ns * 1e9 if parts else -1.0,
        steps=min(sum(part.steps for part in settled(trace.meta.pace)) for trace in traces),
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

"""Simulates a measured pipeline with its own times, to check the simulation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from tracelens.planner.pipeline.simulate import simulate
from tracelens.planner.pipeline.sources import Layers
from tracelens.planner.pipeline.tables import CHECK
from tracelens.planner.pipeline.times import Times, make_times
from tracelens.table import Table

if TYPE_CHECKING:
    from tracelens.planner.pipeline.measured import Line, Measured


EACH_PASS, CHUNK_MEANS, LAYER_MEANS = "each pass", "mean of chunk", "mean of equal layers"
"""Pass times: as measured, or the means that other schedules and other partitions use."""


def verify(measured: Measured) -> Table:
    """CHECK of all pipelines and steps."""
    rows = []
    for line in measured.lines:
        for name, times in _ways(measured, line):
            simulated = simulate(line.schedule, times).makespan
            rows.append(
                {
                    "ranks": ", ".join(map(str, line.ranks)),
                    "step": line.step,
                    "times": name,
                    "measured_ns": line.phase_ns,
                    "simulated_ns": simulated,
                    "offset": simulated / line.phase_ns - 1,
                }
            )
    return CHECK.from_rows(rows)


def _ways(measured: Measured, line: Line) -> Iterator[tuple[str, Times]]:
    """Pass times by name of their kind."""
    yield EACH_PASS, line.times()
    yield CHUNK_MEANS, line.mean_times()
    if measured.layers is not None:
        size, count = line.size, line.size.stages * line.size.chunks
        chunks = Layers(measured.layers).chunks(size.stages, count, measured.shares)
        yield LAYER_MEANS, make_times(chunks, size.stages, size.microbatches, measured.costs)


def fit(check: Table, times: str) -> str:
    """Deviation of the simulated from the measured phase as text, with CHUNK_MEANS or LAYER_MEANS."""
    of_kind = np.array([name == times for name in check.texts("times")], dtype=bool)
    offsets = check.array("offset")[of_kind]
    if not len(offsets):
        return "no check: layers were not measured"
    steps = len(set(check.texts("step")))
    worst = float(offsets[np.abs(offsets).argmax()])
    return f"{worst:+.1%} off the recorded phase" + (f" at most, in {steps} steps" if steps > 1 else "")

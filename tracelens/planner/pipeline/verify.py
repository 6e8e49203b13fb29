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
"""Times of the passes: as each was, or means, which are those of other schedules and of other cuts."""


def verify(measured: Measured) -> Table:
    """CHECK of all pipelines and steps."""
    rows = []
    for line in measured.lines:
        for name, times in _ways(measured, line):
            simulated = simulate(line.schedule, times).makespan
            line_key = ", ".join(map(str, line.ranks)), line.step
            rows.append((*line_key, name, line.phase_ns, simulated, simulated / line.phase_ns - 1))
    return CHECK.from_rows(rows)


def _ways(measured: Measured, line: Line) -> Iterator[tuple[str, Times]]:
    """Times of the passes, from those that are its own to those that could be another run's."""
    yield EACH_PASS, line.times()
    yield CHUNK_MEANS, line.mean_times()
    if measured.layers is not None:
        size, count = line.size, line.size.stages * line.size.chunks
        chunks = Layers(measured.layers).chunks(size.stages, count, measured.shares)
        yield LAYER_MEANS, make_times(chunks, size.stages, size.microbatches, measured.costs)


def fit(check: Table, times: str) -> str:
    """How far the recorded schedule, simulated with times of this kind, is from what was measured; in words.

    Args:
        check: CHECK.
        times: CHUNK_MEANS or LAYER_MEANS.
    """
    offsets = check.array("offset")[check.coded("times").equals(times)]
    if not len(offsets):
        return "no check: layers were not measured"
    steps = len(set(check.texts("step")))
    worst = float(offsets[np.abs(offsets).argmax()])
    return f"{worst:+.1%} off the recorded phase" + (f" at most, in {steps} steps" if steps > 1 else "")

"""A measured pipeline played with its own times: what the simulation leaves out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tracelens.projection.pipeline.simulate import simulate
from tracelens.projection.pipeline.sources import Layers
from tracelens.projection.pipeline.tables import CHECK
from tracelens.projection.pipeline.times import Times, make_times
from tracelens.schema import Table

if TYPE_CHECKING:
    from tracelens.projection.pipeline.measured import Measured
    from tracelens.projection.pipeline.measured_lines import Line


def verify(measured: Measured) -> Table:
    """CHECK of all pipelines and steps."""
    rows = []
    for line in measured.lines:
        for name, times in _ways(measured, line):
            simulated = simulate(line.schedule, times).makespan
            where = ", ".join(map(str, line.ranks)), line.step
            rows.append((*where, name, line.phase_ns, simulated, simulated / line.phase_ns - 1))
    return CHECK.table(dict(zip(CHECK.names, map(list, zip(*rows, strict=True)), strict=True)))


def _ways(measured: Measured, line: Line) -> Iterator[tuple[str, Times]]:
    """Times of the passes, from those that are its own to those that could be another run's."""
    yield "each pass", line.times()
    yield "mean of chunk", line.mean_times()
    if measured.layers is not None:
        size, count = line.size, line.size.stages * line.size.chunks
        chunks = Layers(measured.layers).chunks(size.stages, count, measured.shares)
        yield "mean of equal layers", make_times(chunks, size.stages, size.microbatches, measured.costs)

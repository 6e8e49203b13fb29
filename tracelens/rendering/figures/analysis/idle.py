"""Why the GPU was idle."""

from __future__ import annotations

import numpy as np

from tracelens.rendering.figures.base import needs, plain, ranks
from tracelens.rendering.figures.colors import CAUSES, colors
from tracelens.rendering.figures.figure import Figure, figure
from tracelens.rendering.figures.ranks import rank_bars
from tracelens.table import Table


@figure("idle")
@needs("causes", "rank", "cause", "dur_ns", "fraction")
def idle(idle_causes: Table) -> list[Figure]:
    """Table `causes`: the idle time of each rank by cause, the largest cause first."""
    times = idle_causes.pivot("cause", "rank", "dur_ns")
    largest = np.argsort(-times.values.sum(axis=1), kind="stable").tolist()
    parts = [times.rows[index] for index in largest]
    title = "Idle GPU time by cause"
    total_ns = float(times.values.sum())
    if total_ns > 0:
        title += f": {plain(parts[0], 30)} takes {times.values[largest[0]].sum() / total_ns:.0%}"
    return [rank_bars(title, idle_causes, "cause", ranks(idle_causes), parts, colors(parts, CAUSES))]

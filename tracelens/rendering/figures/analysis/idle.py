"""Why the GPU was idle."""

from __future__ import annotations

import numpy as np

from tracelens.rendering.figures.base import needs, rank_bars, ranks
from tracelens.rendering.figures.figure import Figure, figure
from tracelens.table import Table

_MOST_RANKS = 64


@figure("idle")
@needs("causes", "rank", "cause", "dur_ns", "fraction")
def idle(idle_causes: Table) -> list[Figure]:
    """Table `causes`: one bar a rank, made of the causes of its idle time, the largest first."""
    times = idle_causes.pivot("cause", "rank", "dur_ns")
    largest = np.argsort(-times.values.sum(axis=1), kind="stable").tolist()
    shown = ranks(idle_causes)[:_MOST_RANKS]
    parts = [times.rows[index] for index in largest]
    return [rank_bars("Idle GPU time by cause", idle_causes, "cause", shown, parts)]

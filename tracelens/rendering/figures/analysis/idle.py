"""Why the GPU was idle."""

from __future__ import annotations

from tracelens.rendering.figures.base import by_row, ranks, stacked_bars, table
from tracelens.rendering.figures.figure import Figure, figure
from tracelens.table import Result

_MOST_RANKS = 64


@figure("idle")
def idle(result: Result) -> list[Figure]:
    """Table `causes`: one bar a rank, made of the causes of its idle time, the largest first."""
    idle_causes = table(result, "causes", "rank", "cause", "dur_ns", "fraction")
    if idle_causes is None:
        return []
    shown = ranks(idle_causes)[:_MOST_RANKS]
    causes = idle_causes.texts("cause")
    times = dict.fromkeys(causes, 0)
    for cause, time in zip(causes, idle_causes.array("dur_ns").tolist(), strict=True):
        times[cause] += time
    row_of = {
        key: row for row, key in enumerate(zip(causes, idle_causes.array("rank").tolist(), strict=True))
    }
    parts = sorted(times, key=lambda cause: -times[cause])
    return [
        stacked_bars(
            "Idle GPU time by cause",
            [f"rank {rank}" for rank in shown],
            {
                part: by_row(idle_causes.array("dur_ns"), [row_of.get((part, rank)) for rank in shown])
                for part in parts
            },
            {
                part: by_row(idle_causes.array("fraction"), [row_of.get((part, rank)) for rank in shown])
                for part in parts
            },
        )
    ]

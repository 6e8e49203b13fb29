"""The Gantt chart of a pipeline: forward and backward of each micro-batch on all ranks, and the bubble."""

from __future__ import annotations

import numpy as np

from tracelens.rendering.figures.base import (
    ORANGE,
    VIOLET,
    axis,
    coded,
    layout,
    ms,
    plain,
    ranks,
    rows_axis,
    table,
    where,
)
from tracelens.rendering.figures.figure import Figure, figure
from tracelens.rendering.figures.gantt import PASSES, POINTS, bars, extent, is_text, rows_that_fit
from tracelens.table import Result, Table

_WAITS = {
    "ramp": "rgba(152,161,173,0.45)",
    "p2p_wait": ORANGE,
    "imbalance": VIOLET,
    "other_idle": "rgba(152,161,173,0.2)",
}


@figure("pipeline")
def pipeline(result: Result) -> list[Figure]:
    """Tables `spans` and `waits`: the first step of all ranks on one clock."""
    spans = table(result, "spans", "rank", "step", "stage", "chunk", "microbatch", "phase", "ts_ns", "dur_ns")
    if spans is None:
        return []
    step = coded(spans, "step")
    label = step.values[int(step.codes[0])]
    stages = spans.array("stage")
    order = {rank: int(stages[spans.array("rank") == rank][0]) for rank in ranks(spans)}
    # Stages of one pipeline below each other, as far as rank numbers tell.
    shown = sorted(order, key=lambda rank: (order[rank], rank))[: rows_that_fit(spans, len(order))]
    drawn = _of_step(spans, label, shown)
    begin, end = extent(drawn)
    traces = [
        bars(where(drawn, mask), shown, begin, phase, PASSES[phase])
        for phase in PASSES
        if (mask := is_text(drawn, "phase", phase)).any()
    ]
    waits = table(result, "waits", "rank", "step", "part", "ts_ns", "dur_ns")
    if waits is not None:
        waits = _longest(_of_step(waits, label, shown), POINTS - len(drawn))
        traces += [
            bars(where(waits, mask), shown, begin, part, _WAITS[part])
            for part in _WAITS
            if (mask := is_text(waits, "part", part)).any()
        ]
    title = "Forward and backward of each micro-batch, and what the bubble between them is"
    if len(set(step.codes.tolist())) > 1:
        title += f": {plain(label, 40)}"
    if len(shown) < len(order):
        title += f" ({len(shown)} of {len(order)} ranks)"
    chart = layout(
        title,
        110 + max(22, min(44, 480 // len(shown))) * len(shown),
        barmode="overlay",
        showlegend=True,
        xaxis=axis("time since the first forward (ms)", showgrid=False, range=ms([0, end - begin])),
        yaxis=rows_axis([f"rank {rank} stage {order[rank]}" for rank in shown]),
    )
    return [{"data": traces, "layout": chart}]


def _of_step(rows: Table, label: str, shown: list[int]) -> Table:
    """The rows of one step and some ranks."""
    return where(rows, is_text(rows, "step", label) & np.isin(rows.array("rank"), shown))


def _longest(waits: Table, most: int) -> Table:
    """The longest pieces, in order of the table."""
    keep = np.zeros(len(waits), dtype=bool)
    keep[np.argsort(-waits.array("dur_ns"), kind="stable")[: max(most, 0)]] = True
    return where(waits, keep)

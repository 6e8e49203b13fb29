"""The Gantt chart of a pipeline: forward and backward of each micro-batch on all ranks, and the bubble."""

from __future__ import annotations

import numpy as np

from tracelens.rendering.figures.base import plain, ranks, table
from tracelens.rendering.figures.colors import BUBBLE, PASSES
from tracelens.rendering.figures.figure import Figure, figure
from tracelens.rendering.figures.gantt import POINTS, bars, clock_chart, extent, rows_that_fit
from tracelens.table import Result, Table


@figure("pipeline")
def pipeline(result: Result) -> list[Figure]:
    """Tables `spans` and `waits`: the first step of all ranks on one clock."""
    spans = table(result, "spans", "rank", "step", "stage", "chunk", "microbatch", "phase", "ts_ns", "dur_ns")
    if spans is None:
        return []
    step = spans.coded("step")
    label = step.values[int(step.codes[0])]
    stages = spans.array("stage")
    order = {rank: int(stages[spans.array("rank") == rank][0]) for rank in ranks(spans)}
    # Stages of one pipeline below each other, as far as rank numbers tell.
    shown = sorted(order, key=lambda rank: (order[rank], rank))[: rows_that_fit(spans, len(order))]
    drawn = _of_step(spans, label, shown)
    begin, end = extent(drawn)
    traces = bars(drawn, "phase", PASSES, shown, begin)
    waits = table(result, "waits", "rank", "step", "part", "ts_ns", "dur_ns")
    if waits is not None:
        waits = _of_step(waits, label, shown)
        longest = np.argsort(-waits.array("dur_ns"), kind="stable")[: max(POINTS - len(drawn), 0)]
        traces += bars(waits.take(np.sort(longest)), "part", BUBBLE, shown, begin)
    title = "Forward and backward of each micro-batch, and the causes of the bubble"
    if len(set(step.codes.tolist())) > 1:
        title += f": {plain(label, 40)}"
    if len(shown) < len(order):
        title += f" ({len(shown)} of {len(order)} ranks)"
    return [clock_chart(title, traces, [f"rank {rank} stage {order[rank]}" for rank in shown], end - begin)]


def _of_step(rows: Table, label: str, shown: list[int]) -> Table:
    """The rows of one step and some ranks."""
    return rows.take(rows.coded("step").equals(label) & np.isin(rows.array("rank"), shown))

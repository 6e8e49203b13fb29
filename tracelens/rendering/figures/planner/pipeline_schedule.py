"""Simulated pipeline schedules: makespans and bubbles beside each other, a Gantt chart each, what is held."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracelens.rendering.figures.base import axis, chart, ms, plain, ranks, safe, stacked_bars, table
from tracelens.rendering.figures.colors import PASSES, rank_colors
from tracelens.rendering.figures.figure import Figure, figure
from tracelens.rendering.figures.gantt import MOST_ROWS, POINTS, bars, clock_chart, extent
from tracelens.table import Result, Table
from tracelens.units import GIB

_CHARTS = 4
"""Schedules with a chart of their own."""
_LINES = 8
"""Stages whose memory is drawn."""


@figure("pipeline_schedule")
def pipeline_schedule(result: Result) -> list[Figure]:
    """Table `summary` as bars; of the first schedules `spans` as a Gantt chart and `in_flight` as lines."""
    summary = table(result, "summary", "schedule", "makespan_ns", "bubble_fraction", "longest_ns")
    spans = table(
        result, "spans", "schedule", "rank", "chunk", "microbatch", "phase", "ts_ns", "dur_ns", "paired"
    )
    if summary is None or spans is None:
        return []
    drawn = [_compared(summary)] if len(summary) > 1 else []
    held = table(result, "in_flight", "schedule", "rank", "ts_ns", "chunks", "bytes")
    for number, name in enumerate(summary.texts("schedule")[:_CHARTS]):
        share = float(summary.array("bubble_fraction")[number])
        drawn.append(_gantt(spans.take(spans.coded("schedule").equals(name)), name, share))
        if held is not None:
            drawn.append(_held(held.take(held.coded("schedule").equals(name)), name))
    return drawn


def _compared(summary: Table) -> Figure:
    """Time of the passes and bubble of each schedule."""
    makespan_ns = summary.array("makespan_ns")
    share = summary.array("bubble_fraction")
    idle = np.rint(makespan_ns * share)
    return stacked_bars(
        "Makespan of each schedule: passes, and mean idle time of the stages",
        summary.texts("schedule"),
        {"passes": makespan_ns - idle, "idle": idle},
        {"passes": 1 - share, "idle": share},
    )


def _gantt(spans: Table, name: str, share: float) -> Figure:
    """All passes of one schedule on one clock."""
    all_ranks = ranks(spans)
    shown = all_ranks[:MOST_ROWS]
    begin, end = extent(spans)
    spans = spans.take(np.isin(spans.array("rank"), shown))
    # There may be more passes than a figure can hold; the first ones of all stages show the pattern.
    cut = len(spans) > POINTS
    if cut:
        spans = spans.take(np.sort(np.argsort(spans.array("ts_ns"), kind="stable")[:POINTS]))
        end = extent(spans)[1]
    title = f"{plain(name, 40)}: each micro-batch on each stage, bubble {share:.1%}"
    if len(shown) < len(all_ranks):
        title += f" ({len(shown)} of {len(all_ranks)} stages)"
    if cut:
        title += f" (the first {POINTS:,} passes)"
    labels = [f"stage {rank}" for rank in shown]
    traces = bars(spans, "phase", PASSES, shown, begin)
    return clock_chart(title, traces, labels, end - begin, uniformtext={"mode": "hide", "minsize": 7})


def _held(held: Table, name: str) -> Figure:
    """Chunks in flight over time, or their bytes where known, of some stages."""
    all_ranks = ranks(held)
    picked = np.linspace(0, len(all_ranks) - 1, min(len(all_ranks), _LINES)).round().astype(int).tolist()
    sized = bool((held.array("bytes") >= 0).all())
    labels = {all_ranks[index]: f"stage {all_ranks[index]}" for index in picked}
    color = rank_colors(list(labels))
    points_per_line = POINTS // len(labels)
    traces: list[dict[str, Any]] = []
    for rank, label in labels.items():
        in_flight = held.take(held.array("rank") == rank)
        # A line takes long runs of points; every nth of them shows the same shape.
        step = -(-len(in_flight) // points_per_line)
        values = in_flight.array("bytes") / GIB if sized else in_flight.array("chunks")
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": label,
                "line": {"shape": "hv", "width": 1.5, "color": color[rank]},
                "x": ms(in_flight.array("ts_ns")[::step]),
                "y": np.round(values[::step], 3).tolist(),
                "hovertemplate": "%{y:,} from %{x:,.3f} ms",
            }
        )
    quantity = "activations (GiB)" if sized else "micro-batch chunks"
    return chart(
        traces,
        f"{safe(name, 40)}: in flight on each stage",
        320,
        showlegend=True,
        xaxis=axis("time since the first forward (ms)"),
        yaxis=axis(quantity, rangemode="tozero"),
    )

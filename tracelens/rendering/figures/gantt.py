"""Gantt charts of pipelines: a row a rank, a bar a forward or backward of a micro-batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tracelens.rendering.figures.base import axis, chart, horizontal_bars, ms, rows_axis
from tracelens.rendering.figures.figure import Figure
from tracelens.table import Table

POINTS = 4000
"""Bars that one figure holds."""
MOST_ROWS = 48
"""Ranks that one figure shows."""


def rows_that_fit(spans: Table, count: int) -> int:
    """Ranks, of `count`, whose spans the figure can hold."""
    spans_per_rank = int(np.unique(spans.array("rank"), return_counts=True)[1].max())
    return max(1, min(MOST_ROWS, count, POINTS // spans_per_rank))


def extent(data: Table) -> tuple[int, int]:
    """Begin and end of all rows, ns."""
    start = data.array("ts_ns")
    return int(start.min()), int((start + data.array("dur_ns")).max())


def clock_chart(
    title: str, traces: list[dict[str, Any]], labels: Sequence[str], length: int, **overrides: Any
) -> Figure:
    """The rows with these labels and bars on one clock of `length` ns."""
    return chart(
        traces,
        title,
        110 + max(22, min(44, 480 // len(labels))) * len(labels),
        barmode="overlay",
        showlegend=True,
        **overrides,
        xaxis=axis("time since the first forward (ms)", showgrid=False, range=ms([0, length])),
        yaxis=rows_axis(labels),
    )


def bars(
    spans: Table, column: str, color: Mapping[str, str], shown: Sequence[int], begin: int
) -> list[dict[str, Any]]:
    """Bars of each kind that there is.

    Args:
        spans: columns rank, ts_ns, dur_ns; microbatch and chunk where bars are passes.
        column: their kind.
        color: of each kind.
        shown: ranks, from the top.
        begin: time at the left edge, ns.
    """
    kinds = spans.coded(column)
    return [
        _bars(spans.take(mask), shown, begin, kind, color[kind])
        for kind in color
        if (mask := kinds.equals(kind)).any()
    ]


def _bars(spans: Table, shown: Sequence[int], begin: int, name: str, color: str) -> dict[str, Any]:
    """Bars of one kind; micro-batches have their number, chunks above the first one a paler bar.

    Where some are `paired`, running beside each other, they are drawn half as high.
    """
    row_of = {rank: row for row, rank in enumerate(shown)}
    drawn = horizontal_bars(
        name=name.replace("_", " "),
        marker={"color": color, "line": {"width": 0}},
        y=[row_of[rank] for rank in spans.values("rank")],
        width=0.8,
        base=ms(spans.array("ts_ns") - begin),
        x=ms(spans.array("dur_ns")),
        hovertemplate="%{x:,.3f} ms from %{base:,.3f} ms",
    )
    if "microbatch" not in spans.columns:
        return drawn
    if "paired" in spans.columns and spans.array("paired").any():
        paired = spans.array("paired")
        side = -0.2 if name == "forward" else 0.2
        drawn["y"] = [
            row + side * bool(beside) for row, beside in zip(drawn["y"], paired.tolist(), strict=True)
        ]
        drawn["width"] = np.where(paired, 0.4, 0.8).tolist()
    chunk = spans.array("chunk")
    numbers = np.stack([spans.array("microbatch"), chunk], axis=1).tolist()
    paler = np.round(1 - 0.5 * chunk / max(int(chunk.max(initial=0)) + 1, 1), 2).tolist()
    drawn["marker"] |= {"opacity": paler, "line": {"width": 1, "color": "rgba(255,255,255,0.7)"}}
    return drawn | {
        "customdata": numbers,
        "text": [str(microbatch) for microbatch, _ in numbers],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "hovertemplate": "micro-batch %{customdata[0]}, chunk %{customdata[1]}: " + drawn["hovertemplate"],
    }

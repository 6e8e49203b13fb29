"""How far the host runs ahead of the GPU, and how long launches wait."""

from __future__ import annotations

import numpy as np

from tracelens.rendering.figures.base import axis, chart, ms, needs, over_ranks, ranks, rounded, safe
from tracelens.rendering.figures.colors import BLUE, SEQUENTIAL, rank_colors
from tracelens.rendering.figures.figure import Figure, figure
from tracelens.table import Result, Table

_POINTS = 4000
_LINES = 8
"""Ranks with a line each; more of them are a heat map over time."""
_ROWS = 64
_QUEUE = "Launch queue depth: at zero the GPU waits for the host"


@figure("launches")
def launches(result: Result) -> list[Figure]:
    """Table `queue`: launch queue over time; table `latency_histogram`: how long launches wait."""
    return [*_queue(result), *_latency(result)]


@needs("queue", "rank", "ts_ns", "depth_max", "depth_mean")
def _queue(queue: Table) -> list[Figure]:
    shown = ranks(queue)
    if len(shown) > _LINES:
        return [_queue_map(queue, shown)]
    color = rank_colors(shown)
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": f"rank {rank}",
            "line": {"width": 1.2, "shape": "hv", "color": color[rank]},
            "hovertemplate": "%{x:,.3f} ms: at most %{y:,}, on average %{customdata:,}",
            **_thinned(queue.take(queue.array("rank") == rank), _POINTS // len(shown)),
        }
        for rank in shown
    ]
    return [
        chart(
            traces,
            _QUEUE,
            280,
            showlegend=len(shown) > 1,
            xaxis=axis("time since the first GPU work (ms)", showgrid=False),
            yaxis=axis("in the queue", rangemode="tozero"),
        )
    ]


def _queue_map(queue: Table, all_ranks: list[int]) -> Figure:
    """Mean length of the queue by rank and time; white is where the GPU waits for the host."""
    shown = all_ranks[:_ROWS]
    start = queue.array("ts_ns")
    edges = np.linspace(start.min(), start.max() + 1, _POINTS // len(shown) + 1)
    depth = np.full((len(shown), len(edges) - 1), np.nan)
    for row, rank in enumerate(shown):
        of_rank = queue.take(queue.array("rank") == rank)
        column = np.searchsorted(edges, of_rank.array("ts_ns"), side="right") - 1
        count = np.bincount(column, minlength=len(edges) - 1)
        total = np.bincount(column, weights=of_rank.array("depth_mean"), minlength=len(edges) - 1)
        depth[row, count > 0] = total[count > 0] / count[count > 0]
    truncation = f" (first {_ROWS} of {len(all_ranks)} ranks)" if len(all_ranks) > _ROWS else ""
    drawn = {
        "type": "heatmap",
        "x": ms(edges[:-1]),
        "y": [str(rank) for rank in shown],
        "z": [[None if np.isnan(value) else value for value in rounded(row, 2)] for row in depth],
        "zmin": 0,
        "colorscale": SEQUENTIAL,
        "colorbar": {"title": {"text": "queued"}, "thickness": 12},
        "hoverongaps": False,
        "hovertemplate": "rank %{y}, %{x:,.3f} ms: %{z:,.1f} on average<extra></extra>",
    }
    return chart(
        [drawn],
        f"{_QUEUE}{truncation}",
        140 + max(8, min(22, 640 // len(shown))) * len(shown),
        showlegend=False,
        xaxis=axis("time since the first GPU work (ms)", showgrid=False),
        yaxis=axis("rank", type="category", autorange="reversed", showgrid=False),
    )


def _thinned(rows: Table, points: int) -> dict[str, list[float]]:
    """At most `points` points in order of time; neighbours are merged so that no peak is lost."""
    rows = rows.take(np.argsort(rows.array("ts_ns"), kind="stable"))
    points = min(points, len(rows))
    first = np.unique(np.arange(points) * len(rows) // points)
    count = np.diff(first, append=len(rows))
    return {
        "x": ms(rows.array("ts_ns")[first]),
        "y": np.maximum.reduceat(rows.array("depth_max"), first).tolist(),
        "customdata": rounded(np.add.reduceat(rows.array("depth_mean"), first) / count, 2),
    }


@needs("latency_histogram", "rank", "bucket", "count")
def _latency(histogram: Table) -> list[Figure]:
    bucket = histogram.coded("bucket")
    total = np.bincount(bucket.codes, weights=histogram.array("count"), minlength=len(bucket.values))
    trace = {
        "type": "bar",
        "marker": {"color": BLUE},
        "x": list(range(len(total))),
        "y": total.astype(int).tolist(),
        "hovertemplate": "%{y:,} launches",
        "name": "",
    }
    return [
        chart(
            [trace],
            f"From launch on the host to start on the GPU{over_ranks(histogram)}",
            280,
            bargap=0.12,
            showlegend=False,
            xaxis={
                "title": {"text": "latency"},
                "tickvals": trace["x"],
                "ticktext": [safe(text, 24) for text in bucket.values],
                "automargin": True,
            },
            yaxis=axis("launches", rangemode="tozero"),
        )
    ]

"""How far the host runs ahead of the GPU, and how long launches wait."""

from __future__ import annotations

import numpy as np

from tracelens.rendering.figures.base import axis, chart, ms, needs, over_ranks, ranks, rounded, safe
from tracelens.rendering.figures.colors import BLUE, colors
from tracelens.rendering.figures.figure import Figure, figure
from tracelens.table import Result, Table

_POINTS = 4000
_MOST_RANKS = 8


@figure("launches")
def launches(result: Result) -> list[Figure]:
    """Table `queue`: launch queue over time; table `latency_histogram`: how long launches wait."""
    return [*_queue(result), *_latency(result)]


@needs("queue", "rank", "ts_ns", "depth_max", "depth_mean")
def _queue(queue: Table) -> list[Figure]:
    all_ranks = ranks(queue)
    shown = all_ranks[:_MOST_RANKS]
    color = colors(f"rank {rank}" for rank in shown) if len(shown) > 1 else {f"rank {shown[0]}": BLUE}
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": f"rank {rank}",
            "line": {"width": 1.2, "shape": "hv", "color": color[f"rank {rank}"]},
            "hovertemplate": "%{x:,.3f} ms: at most %{y:,}, on average %{customdata:,}",
            **_thinned(queue.take(queue.array("rank") == rank), _POINTS // len(shown)),
        }
        for rank in shown
    ]
    title = "Launch queue depth: at zero the GPU waits for the host"
    if len(all_ranks) > len(shown):
        title += f" (first {len(shown)} of {len(all_ranks)} ranks)"
    return [
        chart(
            traces,
            title,
            280,
            showlegend=len(shown) > 1,
            xaxis=axis("time since the first GPU work (ms)", showgrid=False),
            yaxis=axis("in the queue", rangemode="tozero"),
        )
    ]


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

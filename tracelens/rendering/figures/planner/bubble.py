"""The bubble of a pipeline over the chunks of each stage, by both conventions, with what was published."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracelens.rendering.figures.base import axis, chart, rounded, safe, table
from tracelens.rendering.figures.colors import BLUE, GREY, ORANGE
from tracelens.rendering.figures.figure import Figure, figure
from tracelens.table import Result

_CONVENTIONS = {
    "whole_fraction": ("of the whole time", BLUE, "bottom center"),
    "ideal_ratio": ("of the ideal time", GREY, "top center"),
}
"""Column to its name, colour and where its numbers stand."""


@figure("bubble")
def bubble(result: Result) -> list[Figure]:
    """Table `by_vpp` as lines, `published` as points beside them."""
    series = table(result, "by_vpp", "vpp", *_CONVENTIONS)
    # One point is no line: without a pipeline there are no chunks to choose.
    if series is None or len(series) < 2:
        return []
    vpp = series.array("vpp").tolist()
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines+markers+text",
            "name": name,
            "line": {"color": color, "width": 2},
            "x": vpp,
            "y": rounded(series.array(column), 6),
            "text": [f"{share:.1%}" for share in series.array(column).tolist()],
            "textposition": position,
            "hovertemplate": "VPP %{x}: %{y:.2%} " + name,
        }
        for column, (name, color, position) in _CONVENTIONS.items()
    ]
    published = table(result, "published", "vpp", "measured_fraction", "source")
    if published is not None:
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "published measurement",
                "marker": {"color": ORANGE, "size": 11, "symbol": "diamond"},
                "x": published.array("vpp").tolist(),
                "y": rounded(published.array("measured_fraction"), 6),
                "customdata": [safe(text, 90) for text in published.texts("source")],
                "hovertemplate": "VPP %{x}: %{y:.1%} of the whole time<br>%{customdata}",
            }
        )
    numbers = {key: result.meta.get(key) for key in ("pp", "microbatches")}
    title = "Pipeline bubble by chunks per stage"
    if all(isinstance(value, int) for value in numbers.values()):
        title += f": {numbers['pp']} stages, {numbers['microbatches']} micro-batches"
    top = max(float(np.max(series.array(column))) for column in _CONVENTIONS)
    return [
        chart(
            traces,
            title,
            380,
            showlegend=True,
            xaxis=axis("chunks per stage (VPP)", dtick=max(1, len(vpp) // 12)),
            yaxis=axis("idle", rangemode="tozero", tickformat=".0%", range=[0, top * 1.12]),
        )
    ]

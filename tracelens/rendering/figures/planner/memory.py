"""Memory of each GPU by component: a stacked bar a pipeline rank, or a layout where there are several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracelens.arrays import Float
from tracelens.rendering.figures.base import axis, chart, rounded, safe, table
from tracelens.rendering.figures.colors import MEMORY, colors
from tracelens.rendering.figures.figure import Figure, figure
from tracelens.table import Result, Table
from tracelens.units import GB, GIB, gib

_BARS = 64
"""Bars that are drawn."""
_LABELLED = 16
"""So many bars have room for their sum above them."""
_LABEL_SHARE = 0.042
"""Parts of the whole height that have room for their number."""


@figure("memory")
def memory(result: Result) -> list[Figure]:
    """Table `memory` as stacked bars, the devices of `fits` as lines across."""
    per_component = table(result, "memory", "layout", "pp_rank", "component", "bytes")
    if per_component is None:
        return []
    layouts, ranks = per_component.texts("layout"), per_component.array("pp_rank").tolist()
    names = list(dict.fromkeys(layouts))
    if len(names) > 1:
        first = {name: ranks[layouts.index(name)] for name in names}
        bars = [(name, first[name]) for name in names[:_BARS]]
        labels = [safe(name, 60).replace(" ", "<br>") for name in names[:_BARS]]
        title = "Memory of the fullest GPU, by layout"
    else:
        bars = [(names[0], rank) for rank in sorted(set(ranks))[:_BARS]]
        labels = [str(rank) for _, rank in bars]
        suffix = f": {safe(names[0], 60)}" if names[0] else ""
        title = f"Memory of each GPU by pipeline rank{suffix}"
    is_shown = np.array([key in bars for key in zip(layouts, ranks, strict=True)])
    shown = per_component.take(is_shown).pivot("component", ("layout", "pp_rank"), "bytes", bars)
    sizes = {name: size_bytes / GIB for name, size_bytes in shown.by_row().items()}
    return [_drawn(title, "" if len(names) > 1 else "pipeline rank", labels, sizes, result)]


def _drawn(title: str, across: str, labels: Sequence[str], sizes: dict[str, Float], result: Result) -> Figure:
    order = {name: number for number, name in enumerate(MEMORY)}
    components = sorted(sizes, key=lambda name: order.get(name, len(order)))
    totals = np.sum([sizes[name] for name in components], axis=0)
    lines = _lines(table(result, "fits", "device", "memory_bytes", "reserve_bytes"))
    top = max([float(totals.max()), *lines.values()]) * 1.08
    # On narrow and on low bars numbers would lie over each other.
    is_labelled = len(labels) <= _LABELLED
    least = _LABEL_SHARE * top if is_labelled else float("inf")
    color = colors(components, MEMORY)
    traces = [_part(name, color[name], sizes[name], least) for name in components]
    if is_labelled:
        traces.append(_sums(totals, in_gb=result.meta.get("framework") == "amd-guide"))
    return chart(
        traces,
        title,
        520,
        barmode="stack",
        showlegend=True,
        xaxis={
            "tickvals": list(range(len(labels))),
            "ticktext": list(labels),
            "range": [-0.6, len(labels) - 0.4],
            "automargin": True,
            "showgrid": False,
            "fixedrange": True,
            "tickangle": 0,
            "title": {"text": across},
        },
        yaxis=axis("GiB", range=[0, top]),
        **_across(lines),
    )


def _part(name: str, color: str, sizes: Float, least: float) -> dict[str, Any]:
    """One component of all bars; sizes from `least` on are told."""
    return {
        "type": "bar",
        "name": safe(name.replace("_", " ").replace(".", ": "), 40),
        "marker": {"color": color},
        "width": 0.7,
        "x": list(range(len(sizes))),
        "y": rounded(sizes, 4),
        "hovertemplate": "%{y:,.2f} GiB",
        "text": [f"{size:,.1f}" if size > least else "" for size in sizes],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "constraintext": "none",
    }


def _sums(totals: Float, in_gb: bool) -> dict[str, Any]:
    """What the components of each bar come to, above it; in decimal GB, too, as published charts count."""
    return {
        "type": "scatter",
        "mode": "text",
        "x": list(range(len(totals))),
        "y": rounded(totals, 4),
        "text": [
            f"{value:,.1f}{f' ({value * GIB / GB:,.1f} GB)' if in_gb else ''}" for value in totals.tolist()
        ],
        "textposition": "top center",
        "showlegend": False,
        "hoverinfo": "skip",
        "cliponaxis": False,
    }


def _across(lines: dict[str, float]) -> dict[str, Any]:
    """Lines across all bars with a text at their end."""
    shapes = [
        {
            "type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": round(value, 3), "y1": round(value, 3),
            "line": {"color": "#d0413e", "width": 1.5, "dash": "dash"},
        }
        for value in lines.values()
    ]  # fmt: skip
    annotations = [
        {
            "xref": "paper", "x": 1, "xanchor": "right", "y": round(value, 3), "yanchor": "bottom",
            "showarrow": False, "text": safe(text, 60), "font": {"size": 11},
        }
        for text, value in lines.items()
    ]  # fmt: skip
    return {"shapes": shapes, "annotations": annotations}


def _lines(fits: Table | None) -> dict[str, float]:
    """Text at the line of each device, and its memory less the reserve in GiB."""
    if fits is None:
        return {}
    gib_of = {}
    columns = (fits.array(name).tolist() for name in ("memory_bytes", "reserve_bytes"))
    for name, size, reserve in zip(fits.texts("device"), *columns, strict=True):
        gib_of[f"{name}: {size / GIB:,.1f} less {gib(reserve)}"] = (size - reserve) / GIB
    return gib_of

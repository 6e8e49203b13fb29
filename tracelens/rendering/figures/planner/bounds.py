"""The speed of light: operations by resource, all-reduces by message size, and collectives against it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tracelens.rendering.figures.base import (
    axis,
    chart,
    horizontal_bars,
    needs,
    plain,
    rounded,
    rows_axis,
    stacked_bars,
)
from tracelens.rendering.figures.colors import BLUE, GREY, IDLE, ORANGE, TEAL, VIOLET
from tracelens.rendering.figures.figure import Figure, figure
from tracelens.table import Result, Table
from tracelens.units import size_text

_US = 1e3
_RESOURCES = {"gemm_ns": ("GEMM", BLUE), "memory_ns": ("memory", TEAL), "link_ns": ("links", ORANGE)}
_ALGORITHMS = {
    "ring_ns": ("ring", GREY),
    "one_shot_ns": ("one-shot", TEAL),
    "two_shot_ns": ("two-shot", BLUE),
    "hierarchical_ns": ("hierarchical", ORANGE),
}
_ROWS = 30


@figure("bounds")
def bounds(result: Result) -> list[Figure]:
    """Tables `all_to_all` and `gemms` as bars by resource, `all_reduce` as lines by size."""
    return [*_all_to_alls(result), *_gemms(result), *_all_reduces(result)]


@needs("all_to_all", "operation", "experts", "topk", "hidden", "tokens", "link_ns", "serial_ns")
def _all_to_alls(data: Table) -> list[Figure]:
    return _by_resource(data, {"experts": "experts", "topk": "top-k", "hidden": "hidden", "tokens": "tokens"})


@needs("gemms", "operation", "m", "n", "k", "gemm_ns", "link_ns", "serial_ns")
def _gemms(data: Table) -> list[Figure]:
    return _by_resource(data, {"m": "m", "n": "n", "k": "k"})


def _by_resource(data: Table, sizes: Mapping[str, str]) -> list[Figure]:
    """One figure an operation: its shapes, with the time of each resource and the bound without overlap."""
    figures = []
    operations = data.texts("operation")
    for name in dict.fromkeys(operations):
        rows = np.flatnonzero(np.array([operation == name for operation in operations]))[:_ROWS]
        part = data.take(rows)
        columns = [[f"{size} {value}" for value in part.array(column)] for column, size in sizes.items()]
        labels = [", ".join(texts) for texts in zip(*columns, strict=True)]
        traces: list[dict[str, Any]] = [
            horizontal_bars(
                name=resource,
                marker={"color": color},
                y=list(range(len(labels))),
                x=rounded(part.array(column) / _US, 4),
                hovertemplate="%{x:,.2f} µs by " + resource,
            )
            for column, (resource, color) in _RESOURCES.items()
            if column in part.columns
        ]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "without overlap",
                "marker": {"color": VIOLET, "size": 22, "symbol": "line-ns-open", "line": {"width": 3}},
                "x": rounded(part.array("serial_ns") / _US, 4),
                "y": list(range(len(labels))),
                "hovertemplate": "%{x:,.2f} µs without overlap",
            }
        )
        figures.append(
            chart(
                traces,
                f"{plain(name, 60)}: least time by resource",
                120 + 48 * len(labels),
                showlegend=True,
                barmode="group",
                bargap=0.25,
                xaxis=axis("time (µs), logarithmic", type="log", tickformat=",", dtick="D2"),
                yaxis=rows_axis(labels, 60),
            )
        )
    return figures


@needs("all_reduce", "nodes", "gpus", "bytes", *_ALGORITHMS)
def _all_reduces(data: Table) -> list[Figure]:
    """One figure per number of nodes: time by message size, a line an algorithm."""
    figures = []
    for nodes in sorted(set(data.array("nodes").tolist())):
        part = data.take(np.flatnonzero(data.array("nodes") == nodes))
        size = part.array("bytes")
        traces = [
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": name,
                "line": {"color": color, "width": 2},
                "x": [size_text(value) for value in size.tolist()],
                "y": rounded(part.array(column) / _US, 3),
                "hovertemplate": "%{x}: %{y:,.1f} µs " + name,
            }
            for column, (name, color) in _ALGORITHMS.items()
            if (part.array(column) >= 0).all()
        ]
        gpus = part.array("gpus").tolist()[0]
        figures.append(
            chart(
                traces,
                f"All-reduce of {gpus} GPUs on {nodes} node{'s' * (nodes > 1)}",
                380,
                showlegend=True,
                xaxis={"type": "category", "title": {"text": "message size"}, "automargin": True},
                yaxis=axis("time (µs), logarithmic", type="log", tickformat=",", dtick="D2"),
            )
        )
    return figures


@figure("trace_bounds")
def trace_bounds(result: Result) -> list[Figure]:
    """Table `collectives` as bars of bound and excess, `pairs` as GEMM and collective beside their bounds."""
    return [*_transfers(result), *_pairs(result)]


@needs("collectives", "collective", "group", "from_bytes", "count", "achieved", "excess_ns")
def _transfers(data: Table) -> list[Figure]:
    """The time of all collectives of a group and size: the bound of their links, and what is above it."""
    shown = data.take(slice(0, _ROWS))
    excess = shown.array("excess_ns")
    achieved = shown.array("achieved")
    # achieved = bound / (bound + excess); above 1 nothing is in excess.
    bound = np.where(achieved < 1, achieved * excess / np.maximum(1 - achieved, 1e-12), 0)
    total = np.maximum(bound + np.maximum(excess, 0), 1e-9)
    keys = zip(
        shown.texts("collective"), shown.texts("group"), shown.array("from_bytes").tolist(),
        shown.array("count").tolist(), strict=True,
    )  # fmt: skip
    labels = [f"{name}, {group}, from {size_text(size)} ({count}x)" for name, group, size, count in keys]
    parts = {"bound of the links": bound, "above the bound": np.maximum(excess, 0)}
    return [
        stacked_bars(
            "Transfer time of collectives against their links, without waiting",
            labels,
            parts,
            {name: values / total for name, values in parts.items()},
            {"bound of the links": ORANGE, "above the bound": IDLE},
        )
    ]


@needs("pairs", "operation", "group", "shape", "gemm_dur_ns", "latency_ns", "overlapped_ns", "serial_ns")
def _pairs(data: Table) -> list[Figure]:
    """GEMM and collective as measured, with the bounds of the two with and without overlap."""
    shown = data.take(slice(0, _ROWS))
    rows = list(range(len(shown)))
    traces: list[dict[str, Any]] = [
        horizontal_bars(
            name=name,
            marker={"color": color},
            width=0.6,
            y=rows,
            x=rounded(shown.array(column) / _US, 3),
            hovertemplate="%{x:,.1f} µs " + name,
        )
        for column, name, color in (("gemm_dur_ns", "GEMM", BLUE), ("latency_ns", "collective", ORANGE))
    ]
    traces += [
        {
            "type": "scatter",
            "mode": "markers",
            "name": name,
            "marker": {"color": color, "size": 16, "symbol": "line-ns-open", "line": {"width": 3}},
            "y": rows,
            "x": rounded(shown.array(column) / _US, 3),
            "hovertemplate": "%{x:,.1f} µs " + name,
        }
        for column, name, color in (
            ("overlapped_ns", "bound with overlap", TEAL),
            ("serial_ns", "bound without overlap", VIOLET),
        )
    ]
    labels = zip(*(shown.texts(name) for name in ("operation", "group", "shape")), strict=True)
    return [
        chart(
            traces,
            "GEMMs next to collectives against their bounds",
            130 + 34 * len(rows),
            showlegend=True,
            barmode="stack",
            xaxis=axis("time (µs)", rangemode="tozero"),
            yaxis=rows_axis([f"{operation}, {group}, {shape}" for operation, group, shape in labels], 60),
        )
    ]

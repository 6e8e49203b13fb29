"""Ops under the roofs of their device, and the time that they could save."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracelens.arrays import Float
from tracelens.rendering.figures.base import (
    axis,
    chart,
    over_ranks,
    rounded,
    safe,
    stacked_bars,
    table,
    wrapped,
)
from tracelens.rendering.figures.colors import GREY, colors
from tracelens.rendering.figures.figure import Figure, figure
from tracelens.table import Result, Table

_BUBBLES = 600
_NAMES = 9
_BARS = 20
_REST = "other ops"
# The largest bubble's diameter in pixels; smaller ones by area, but large enough to be pointed at.
_LARGEST, _SMALLEST = 52, 5
_DASH = {"matrix": "solid", "vector": "dash", "maf": "dot"}
_INK = "#7d8796"


@figure("roofline")
def roofline(result: Result) -> list[Figure]:
    """Table `roofline` under the roofs of table `roofs`, and the rows with the most to save."""
    ops = table(
        result, "roofline", "rank", "name", "shapes", "dtype", "count", "dur_ns", "flops", "flops_per_s",
        "bytes_per_s", "intensity", "bound", "efficiency", "recoverable_ns", "note",
    )  # fmt: skip
    if ops is None:
        return []
    return [*_under_roofs(result, ops), *_savings(ops)]


def _under_roofs(result: Result, ops: Table) -> list[Figure]:
    dur = ops.array("dur_ns")
    # What goes over a link has no place under the memory's roof, nor what computes nothing on a log scale.
    drawable = (ops.array("flops") > 0) & (ops.array("bytes_per_s") > 0) & (dur > 0)
    drawable &= ~ops.coded("bound").mask(lambda text: "link" in text)
    if not drawable.any():
        return []
    rows = np.flatnonzero(drawable)
    rows = rows[np.argsort(-dur[rows], kind="stable")[:_BUBBLES]]
    shown = ops.take(np.sort(rows))
    x = shown.array("intensity")
    ends = (10 ** np.floor(np.log10(x.min())), 10 ** np.ceil(np.log10(max(x.max(), 2000.0))))
    share = float(dur[rows].sum()) / float(max(dur.sum(), 1))
    counted = result.meta.get("coverage")
    whole = "of the GPU time" if isinstance(counted, float) else "of the counted time"
    share *= counted if isinstance(counted, float) else 1
    title = (
        f"Ops and shapes under the roofline: {share:.{0 if share >= 0.1 else 1}%} {whole}; area shows time"
    )
    lines = _roofs(result, shown, ends)
    return [
        chart(
            [*lines, *_bubbles(shown)],
            title,
            560,
            showlegend=True,
            legend={
                "orientation": "v",
                "x": 1.01,
                "y": 1,
                "groupclick": "toggleitem",
                "itemsizing": "constant",
            },
            xaxis=axis("FLOPs per byte", type="log", range=np.log10(ends).tolist(), tickformat="~s"),
            yaxis=axis("FLOP/s", type="log", tickformat="~s", exponentformat="SI"),
        )
    ]


def _bubbles(shown: Table) -> list[dict[str, Any]]:
    names, dur = shown.coded("name"), shown.array("dur_ns")
    time = np.bincount(names.codes, weights=dur, minlength=len(names.values))
    largest = np.argsort(-time, kind="stable")[:_NAMES]
    group = np.full(len(names.values), -1)
    group[largest] = np.arange(len(largest))
    labels = [names.values[code] for code in largest.tolist()]
    color = colors(labels)
    hover = np.array(_hover(shown), dtype=object)
    traces = []
    for number, label in enumerate([*labels, _REST]):
        rows = np.flatnonzero(group[names.codes] == (number if number < len(labels) else -1))
        if not len(rows):
            continue
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": safe(label, 34),
                "legendgroup": "ops",
                "legendgrouptitle": {"text": "ops"},
                "x": rounded(shown.array("intensity")[rows], 4),
                "y": rounded(shown.array("flops_per_s")[rows], 0),
                "customdata": hover[rows].tolist(),
                "hovertemplate": "%{customdata}<extra></extra>",
                "marker": {
                    "color": GREY if label == _REST and number == len(labels) else color[label],
                    "opacity": 0.62,
                    "line": {"width": 0.6, "color": "rgba(255,255,255,0.6)"},
                    "size": rounded(dur[rows] / 1e6, 6),
                    "sizemode": "area",
                    "sizeref": float(dur.max()) / 1e6 / _LARGEST**2,
                    "sizemin": _SMALLEST,
                },
            }
        )
    return traces


def _hover(shown: Table) -> list[str]:
    """The box of each bubble: what it is, how long it took, how far it got."""
    texts = zip(*(shown.texts(name) for name in ("name", "shapes", "dtype", "bound", "note")), strict=True)
    number_names = ("count", "dur_ns", "flops_per_s", "bytes_per_s", "efficiency")
    numbers = zip(*(shown.array(name).tolist() for name in number_names), strict=True)
    boxes = []
    for (name, shapes, dtype, bound, note), (count, dur, flops, moved, efficiency) in zip(
        texts, numbers, strict=True
    ):
        lines = [wrapped(name), wrapped(shapes), f"{dur / 1e6:,.3f} ms in {count:,} calls"]
        lines.append(f"{flops / 1e12:,.2f} TFLOP/s {safe(dtype, 12)}, {moved / 1e9:,.0f} GB/s")
        if efficiency >= 0:
            lines.append(f"{efficiency:.1%} of the roofline, bound by {safe(bound, 20) or 'nothing'}")
        boxes.append("<br>".join([line for line in lines if line] + ([wrapped(note)] if note else [])))
    return boxes


def _roofs(result: Result, shown: Table, ends: Sequence[float]) -> list[dict[str, Any]]:
    """The chosen device's roofs for the element types in use; of other devices the main type's roof."""
    roofs = table(result, "roofs", "device", "role", "kind", "dtype", "flops_per_s", "bytes_per_s")
    if roofs is None:
        return []
    time: dict[str, int] = {}
    for dtype, dur in zip(shown.texts("dtype"), shown.array("dur_ns").tolist(), strict=True):
        time[dtype] = time.get(dtype, 0) + dur
    rows = list(
        zip(
            *(roofs.texts(name) for name in ("device", "kind", "dtype", "role")),
            *(roofs.array(name).tolist() for name in ("flops_per_s", "bytes_per_s")),
            strict=True,
        )
    )
    used = {dtype for dtype in time if any(dtype == row[2] and row[1] == "matrix" for row in rows)}
    main = max(used, key=lambda dtype: time[dtype], default="bf16")
    color = colors(row[0] for row in rows)
    device_peak = max((row[4] for row in rows if row[1:4] == ("matrix", main, "chosen")), default=0.0)
    lines = []
    for device, kind, dtype, role, peak, bandwidth in rows:
        if role == "chosen" and (dtype in used or (kind == "vector" and dtype == "fp32")):
            name = f"{'max-achievable' if kind == 'maf' else kind} {dtype}"
            lines.append(
                _line(name, device, peak, bandwidth, ends, color=_INK, dash=_DASH.get(kind, "solid"))
            )
        elif role != "chosen" and kind == "matrix" and dtype == main:
            line = _line(device, f"{main} matrix roof of others", peak, bandwidth, ends, color=color[device])
            line["line"] |= {"width": 0.9, "dash": "longdashdot"}
            # Devices of earlier generations are one click away.
            near = role == "measured" or peak >= device_peak / 2
            lines.append(line if near else line | {"visible": "legendonly"})
    return lines


def _line(
    name: str,
    group: str,
    peak: float,
    bandwidth: float,
    ends: Sequence[float],
    *,
    color: str,
    dash: str = "solid",
) -> dict[str, Any]:
    ridge = min(max(peak / bandwidth, ends[0]), ends[1])
    x = np.array([ends[0], ridge, ends[1]])
    y: Float = np.minimum(x * bandwidth, peak)
    rates = f"{peak / 1e12:,.1f} TFLOP/s, {bandwidth / 1e12:,.2f} TB/s"
    return {
        "type": "scatter",
        "mode": "lines",
        "name": safe(name, 34),
        "legendgroup": safe(group, 40),
        "legendgrouptitle": {"text": safe(group, 40)},
        "x": x.tolist(),
        "y": y.tolist(),
        "line": {"width": 1.6, "color": color, "dash": dash},
        "hovertemplate": f"{safe(group, 40)}: {safe(name, 34)}<br>{rates}<extra></extra>",
    }


def _savings(ops: Table) -> list[Figure]:
    """Bars of the rows with the most recoverable time; ranks with the same op and shape are summed."""
    saved = ops.array("recoverable_ns")
    if not (saved > 0).any():
        return []
    group, (names, shapes) = ops.group("name", "shapes")
    known = saved >= 0
    lost = np.bincount(group, weights=np.where(known, saved, 0))
    done = np.bincount(group, weights=np.where(known, ops.array("dur_ns") - saved, 0))
    top = [row for row in np.argsort(-lost, kind="stable")[:_BARS].tolist() if lost[row] > 0]
    total_ns = max(float(ops.array("dur_ns").sum()), 1.0)
    parts = {"at the roofline": done[top], "recoverable": lost[top]}
    return [
        stacked_bars(
            f"Measured - roofline time: what perfect kernels would save (top {len(top)}){over_ranks(ops)}",
            [f"{names[row]}  {shapes[row]}" for row in top],
            parts,
            {part: ns / total_ns for part, ns in parts.items()},
        )
    ]

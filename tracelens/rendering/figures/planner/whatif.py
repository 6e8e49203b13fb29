"""What if: the projected step of each scenario with its interval, and what each step waits for."""

from __future__ import annotations

import numpy as np

from tracelens.rendering.figures.base import (
    axis,
    chart,
    folded,
    horizontal_bars,
    ms,
    row_labels,
    rows_axis,
    safe,
    stacked_bars,
    table,
)
from tracelens.rendering.figures.colors import BLUE
from tracelens.rendering.figures.figure import Figure, figure
from tracelens.table import Result, Table
from tracelens.units import milliseconds

_ROWS = 40
"""Scenarios that are drawn."""
_PARTS = 11
"""Parts of the critical path that have a colour of their own; the others are one."""
REST = "rest"
_BASE = "rgba(152,161,173,0.35)"


@figure("whatif")
def whatif(result: Result) -> list[Figure]:
    """Table `whatif` as bars before those of the measured step; table `critical_path` as their make-up."""
    steps = table(result, "whatif", "scenario", "base_ns", "projected_ns", "low_ns", "high_ns", "gain")
    drawn = [_steps(steps)] if steps is not None else []
    paths = table(result, "critical_path", "scenario", "category", "dur_ns")
    if paths is not None:
        drawn.append({"table": "critical_path"} | _paths(paths))
    return drawn


def _steps(steps: Table) -> Figure:
    """Bars of the projected steps, best first, before those of the measured one."""
    steps = steps.take(slice(_ROWS))
    names, gain = steps.texts("scenario"), steps.array("gain")
    base, projected, low, high = (steps.array(f"{key}_ns") for key in ("base", "projected", "low", "high"))
    hover = [
        f"{safe(name, 60)}<br>{milliseconds(now, 3)} ({least / 1e6:,.3f} to {most / 1e6:,.3f}), "
        f"measured {milliseconds(was, 3)}<br>throughput {more:+.1%}"
        for name, now, least, most, was, more in zip(names, projected, low, high, base, gain, strict=True)
    ]
    rows = list(range(len(names)))
    measured = horizontal_bars(
        y=rows, name="measured", x=ms(base), width=0.8, marker={"color": _BASE}, hoverinfo="skip"
    )
    now = horizontal_bars(
        y=rows,
        name="projected",
        x=ms(projected),
        width=0.5,
        marker={"color": BLUE},
        error_x={
            "type": "data",
            "symmetric": False,
            "array": ms(np.maximum(high - projected, 0)),
            "arrayminus": ms(np.maximum(projected - low, 0)),
            "thickness": 1.4,
        },
        customdata=[[text] for text in hover],
        hovertemplate="%{customdata[0]}<extra></extra>",
    )
    furthest = np.maximum(np.maximum(base, high), projected)
    texts = [f"  {milliseconds(ns, 3)}, {more:+.1%}" for ns, more in zip(projected, gain, strict=True)]
    labels = row_labels(furthest, texts)
    longest = float(furthest.max()) / 1e6
    return chart(
        [measured, now, labels],
        "Projected step and throughput gain of each scenario; whiskers: shortest and longest recorded "
        "step, replayed",
        120 + 34 * len(names),
        barmode="overlay",
        showlegend=True,
        xaxis=axis("time (ms)", range=[0, longest * 1.25 or 1]),
        yaxis=rows_axis(names),
    )


def _paths(paths: Table) -> Figure:
    """What each step waits for, stacked; parts with most time first, the small ones together."""
    times = paths.pivot("category", "scenario", "dur_ns")
    order = np.argsort(-times.values.sum(axis=1), kind="stable")
    scenarios = times.columns[: _ROWS + 1]
    ns = folded(times.values[order][:, : len(scenarios)], _PARTS)
    names = [times.rows[index] for index in order.tolist()]
    parts = dict(zip(names if len(names) == len(ns) else [*names[:_PARTS], REST], ns, strict=True))
    total_ns = np.maximum(ns.sum(axis=0), 1)
    shares = {name: part_ns / total_ns for name, part_ns in parts.items()}
    return stacked_bars("Critical path of each step", scenarios, parts, shares)

"""What if: the projected step of each scenario with its interval, and what each step waits for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracelens.rendering.figures.base import BLUE, axis, layout, ms, rows_axis, safe, stacked_bars, table
from tracelens.rendering.figures.figure import Figure, figure
from tracelens.table import Result, Table

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
        drawn.append(_paths(paths))
    return drawn


def _steps(steps: Table) -> Figure:
    """Bars of the projected steps, best first, before those of the measured one."""
    rows = slice(_ROWS)
    names = steps.texts("scenario", rows)
    base, projected, low, high = (
        steps.array(f"{key}_ns")[rows] for key in ("base", "projected", "low", "high")
    )
    gain = steps.array("gain")[rows]
    hover = [
        f"{safe(name, 60)}<br>{now / 1e6:,.3f} ms ({least / 1e6:,.3f} to {most / 1e6:,.3f}), "
        f"measured {was / 1e6:,.3f} ms<br>throughput {more:+.1%}"
        for name, now, least, most, was, more in zip(names, projected, low, high, base, gain, strict=True)
    ]
    places = list(range(len(names)))
    bar = {"type": "bar", "orientation": "h", "y": places}
    measured = {
        **bar,
        "name": "measured",
        "x": ms(base),
        "width": 0.8,
        "marker": {"color": _BASE},
        "hoverinfo": "skip",
    }
    now = {
        **bar,
        "name": "projected",
        "x": ms(projected),
        "width": 0.5,
        "marker": {"color": BLUE},
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": ms(np.maximum(high - projected, 0)),
            "arrayminus": ms(np.maximum(projected - low, 0)),
            "thickness": 1.4,
        },
        "customdata": [[text] for text in hover],
        "hovertemplate": "%{customdata[0]}<extra></extra>",
    }
    furthest = np.maximum(np.maximum(base, high), projected)
    labels = _labels(furthest, projected, gain)
    longest = float(furthest.max()) / 1e6
    return {
        "data": [measured, now, labels],
        "layout": layout(
            "Projected step of each scenario, gain in throughput; whiskers: shortest and longest recorded "
            "step, replayed",
            120 + 34 * len(names),
            barmode="overlay",
            showlegend=True,
            xaxis=axis("time (ms)", range=[0, longest * 1.25 or 1]),
            yaxis=rows_axis(names),
        ),
    }


def _labels(ends: NDArray[Any], projected: NDArray[Any], gain: NDArray[Any]) -> dict[str, Any]:
    """Step and gain of each row, behind all that is drawn of it."""
    return {
        "type": "scatter",
        "mode": "text",
        "showlegend": False,
        "hoverinfo": "skip",
        "x": ms(ends),
        "y": list(range(len(ends))),
        "text": [f"  {ns / 1e6:,.3f} ms, {more:+.1%}" for ns, more in zip(projected, gain, strict=True)],
        "textposition": "middle right",
        "cliponaxis": False,
    }


def _paths(paths: Table) -> Figure:
    """What each step waits for, stacked; parts with most time first, the small ones together."""
    spans: dict[str, dict[str, int]] = {}
    total: dict[str, int] = {}
    for scenario, category, ns in zip(
        paths.texts("scenario"), paths.texts("category"), paths.array("dur_ns").tolist(), strict=True
    ):
        spans.setdefault(scenario, {})[category] = ns
        total[category] = total.get(category, 0) + ns
    rows = [*spans][: _ROWS + 1]
    order = sorted(total, key=lambda name: -total[name])
    named = order if len(order) <= _PARTS + 1 else order[:_PARTS]
    parts = {name: [spans[row].get(name, 0) for row in rows] for name in named}
    if len(named) < len(order):
        parts[REST] = [sum(_unnamed(spans[row], named).values()) for row in rows]
    totals = [max(sum(spans[row].values()), 1) for row in rows]
    shares = {
        name: [ns / total_ns for ns, total_ns in zip(times, totals, strict=True)]
        for name, times in parts.items()
    }
    return stacked_bars("Critical path of each step: what it waits for", rows, parts, shares)


def _unnamed(parts: Mapping[str, int], named: list[str]) -> dict[str, int]:
    return {name: ns for name, ns in parts.items() if name not in named}

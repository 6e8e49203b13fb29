"""From one step time to another: what became slower and what faster, and both as boxes beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracelens.rendering.figures.base import axis, chart, horizontal_bars, menu, ms, needs, rows_axis, wrapped
from tracelens.rendering.figures.colors import GREY, ORANGE, TEAL
from tracelens.rendering.figures.figure import Figure, figure
from tracelens.rendering.figures.icicle import category_colors, icicle
from tracelens.rendering.tables import select
from tracelens.table import Result, Table
from tracelens.units import milliseconds

_LEVELS = ("cause", "graph", "stage", "category", "op")
_BARS = 14
_SMALL = 0.01
"""Differences below this share of the largest one are joined."""
_CROPPED = 0.25
"""The axis begins at zero unless all differences lie within this share of the longer step."""
_NODES = 300
_LEAST = 0.003
"""Share of the step that is a box; a thinner one would not be seen and leave a gap."""
_SIDES = {"base_ns": "base", "cand_ns": "candidate"}


@figure("diff")
def diff(result: Result) -> list[Figure]:
    """Table `waterfall` as bars from one step time to the other; table `icicle` as an icicle of each."""
    return [*_waterfall(result), *_icicles(result)]


@dataclass(frozen=True)
class _Bar:
    """A row of the waterfall, in ns: a difference between `start` and `end`, or a step time from 0."""

    name: str
    start: int
    end: int
    base: int
    cand: int
    note: str = ""
    total: bool = False

    @property
    def text(self) -> str:
        return f"{self.end / 1e6:,.3f}" if self.total else f"{(self.end - self.start) / 1e6:+,.3f}"

    @property
    def color(self) -> str:
        if self.total:
            return GREY
        return ORANGE if self.end > self.start else TEAL


@needs("waterfall", "level", "name", "base_ns", "cand_ns", "delta_ns", "share", "noise")
def _waterfall(waterfall: Table) -> list[Figure]:
    level = waterfall.coded("level")
    cuts = {name: _bars(waterfall.take(mask)) for name in _LEVELS if (mask := level.equals(name)).any()}
    if not cuts:
        return []
    views = [_view(bars) for bars in cuts.values()]
    for number, view in enumerate(views):
        view["trace"]["visible"] = number == 0
    drawn = chart(
        [view["trace"] for view in views],
        "From base to candidate step time: what got slower, and what faster",
        110 + 28 * max(map(len, cuts.values())),
        showlegend=False,
        xaxis=axis("", **views[0]["xaxis"]),
        yaxis=views[0]["yaxis"],
    )
    drawn["layout"]["xaxis"]["title"] = {"text": views[0]["title"]}
    if len(views) > 1:
        drawn["layout"]["updatemenus"] = menu(
            "update", {f"by {name}": _update(views, view) for name, view in zip(cuts, views, strict=True)}
        )
    return [drawn]


def _bars(part: Table) -> list[_Bar]:
    """The base, the largest differences, all others as one, and the candidate."""
    base, cand = (part.array(name) for name in ("base_ns", "cand_ns"))
    delta = np.abs(cand - base)
    order = np.argsort(-delta, kind="stable")
    large = order[delta[order] >= max(_SMALL * delta.max(), 1)][:_BARS]
    small = np.setdiff1d(order, large)
    rows = [
        (name, base[row], cand[row], _noise(noise))
        for row, name, noise in zip(large, part.texts("name", large), part.texts("noise", large), strict=True)
    ]
    if len(small):
        rows.append(
            ("rest", base[small].sum(), cand[small].sum(), f"{len(small):,} with little or no difference")
        )
    totals = int(base.sum()), int(cand.sum())
    bars = [_Bar("base", 0, totals[0], *totals, total=True)]
    position = totals[0]
    for name, before, after, note in rows:
        bars.append(_Bar(name, position, position + int(after - before), int(before), int(after), note))
        position = bars[-1].end
    return [*bars, _Bar("candidate", 0, totals[1], *totals, total=True)]


def _noise(text: str) -> str:
    return "noise between steps unknown" if text == "unknown" else f"{text} the noise between steps"


def _view(bars: Sequence[_Bar]) -> dict[str, Any]:
    """One trace, and what the axes are for it."""
    ends = [bar.end for bar in bars]
    high, span = max(ends), max(ends) - min(ends)
    cropped = 0 < span < _CROPPED * high
    axis_start = max(min(ends) - span, 0) if cropped else min(*ends, 0)
    room = 0.13 * (high - axis_start)
    # A bar that began outside of the axis would have its number there as well.
    starts = [max(bar.start, axis_start) for bar in bars]
    lengths = [end - start for start, end in zip(starts, ends, strict=True)]
    difference = bars[0].cand - bars[0].base
    trace = horizontal_bars(
        y=list(range(len(bars))),
        base=ms(starts),
        x=ms(lengths),
        width=0.7,
        marker={"color": [bar.color for bar in bars], "line": {"width": 0}},
        text=[bar.text for bar in bars],
        # Long bars have room for their number, and a narrow page has none behind them.
        textposition=[
            "inside" if bar.total and length > room else "outside"
            for bar, length in zip(bars, lengths, strict=True)
        ],
        insidetextanchor="end",
        insidetextfont={"color": "#10151c"},
        cliponaxis=False,
        customdata=[[_hover(bar, difference)] for bar in bars],
        hovertemplate="%{customdata[0]}<extra></extra>",
    )
    return {
        "trace": trace,
        "title": "step time (ms), not from 0" if cropped else "step time (ms)",
        "xaxis": {"range": ms([axis_start, high + room])},
        "yaxis": rows_axis([bar.name for bar in bars]),
    }


def _hover(bar: _Bar, difference: int) -> str:
    if bar.total:
        return f"{bar.name}: {bar.text} ms per step"
    lines = [
        wrapped(bar.name),
        f"base {bar.base / 1e6:,.3f} ms, candidate {bar.cand / 1e6:,.3f} ms",
        f"{bar.text} ms"
        + (f", {(bar.end - bar.start) / difference:.1%} of the difference" if difference else ""),
        bar.note,
    ]
    return "<br>".join(lines)


def _update(views: Sequence[dict[str, Any]], view: dict[str, Any]) -> list[dict[str, Any]]:
    """What shows one of the views: its trace, and its axes."""
    return [
        {"visible": [other is view for other in views]},
        {
            "xaxis.range": view["xaxis"]["range"],
            "xaxis.title.text": view["title"],
            **{f"yaxis.{key}": view["yaxis"][key] for key in ("range", "tickvals", "ticktext")},
        },
    ]


@needs("icicle", "node", "parent", "level", "name", *_SIDES)
def _icicles(nodes: Table) -> list[Figure]:
    top = nodes.array("parent") < 0
    totals = {side: int(nodes.array(side)[top].sum()) for side in _SIDES}
    if not all(totals.values()):
        return []
    color = category_colors(nodes.texts("name", nodes.coded("level").equals("category")))
    heights = [[round(1 - size / max(totals.values()), 5), 1] for size in totals.values()]
    traces = []
    for number, side in enumerate(_SIDES):
        trace = _icicle(nodes, side, color)
        trace["domain"] = {"x": [0.51 * number, 0.49 + 0.51 * number], "y": heights[number]}
        traces.append(trace)
    drawn = chart(
        traces,
        "Step time by category, op and kernel: base on the left, candidate on the right; click a box to zoom",
        580,
        margin={"l": 4, "r": 4, "t": 30, "b": 8},
        uniformtext={"minsize": 10, "mode": "hide"},
    )
    # One scale shows the difference, and leaves little of the faster run to be read.
    scales = {"one scale": heights, "shares of each": [[0, 1], [0, 1]]}
    drawn["layout"]["updatemenus"] = menu(
        "restyle", {label: [{"domain.y": ends}] for label, ends in scales.items()}
    )
    return [drawn]


def _icicle(nodes: Table, side: str, color: dict[str, str]) -> dict[str, Any]:
    """One side: its largest nodes."""
    side_nodes = nodes.take(nodes.array(side) > 0)
    sizes = side_nodes.array(side)
    total_ns = int(sizes[side_nodes.array("parent") < 0].sum())
    visible = int((sizes >= _LEAST * total_ns).sum())
    tree = select(side_nodes, min(max(visible, 1), _NODES), side)
    base, cand = (side_nodes.array(name)[tree.rows] for name in _SIDES)
    other_ns = cand if side == "base_ns" else base
    name = "candidate" if side == "base_ns" else "base"
    notes = [f"{name} {milliseconds(ns, 3)}" if ns else f"not in the {name}" for ns in other_ns.tolist()]
    return icicle(
        tree,
        side_nodes.texts("name", tree.rows),
        side_nodes.texts("level", tree.rows),
        sizes[tree.rows].tolist(),
        root=(_SIDES[side], total_ns),
        color=color,
        notes=notes,
    )

"""From one step time to another: the diff of two runs, and a ladder of optimisations from rung to rung."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tracelens.arrays import Int
from tracelens.rendering.figures.colors import BLUE, GREY, ORANGE, TEAL, colors
from tracelens.rendering.figures.figure import (
    Figure,
    axis,
    category_colors,
    chart,
    figure,
    folded,
    horizontal_bars,
    icicle,
    menu,
    ms,
    needs,
    rounded,
    row_labels,
    rows_axis,
    safe,
    stacked_bars,
    table,
    wrapped,
)
from tracelens.rendering.tables import select
from tracelens.rendering.thresholds import JOINED_SHARE
from tracelens.table import Result, Table
from tracelens.units import GIB, milliseconds

_LEVELS = ("cause", "graph", "stage", "category", "op")
_BARS = 14
_CROPPED = 0.25
"""The axis begins at zero unless all differences lie within this share of the longer step."""
_NODES = 300
_LEAST = 0.003
"""Share of the step that is a box; a thinner one would not be seen and leave a gap."""
_SIDES = {"base_ns": "base", "cand_ns": "candidate"}

_RUNGS = 40
"""Rungs that are drawn; each is a row."""
_PARTS = 9
"""Parts of the step that have a colour of their own; the others are one."""
_REST = "rest"
_LADDER_CROPPED = 0.45
"""The axis begins at zero unless all that is drawn lies above this share of the longest step."""
_GAP = 0.2


class _WaterfallBar(Struct, frozen=True):
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


@figure("diff")
@needs("waterfall", "level", "name", "base_ns", "cand_ns", "delta_ns", "fraction_of_difference", "noise")
def step_time_waterfall(waterfall: Table) -> list[Figure]:
    """Bars from one step time to the other, by each level of the table."""
    level = waterfall.coded("level")
    by_level = {name: _view(waterfall.take(mask)) for name in _LEVELS if (mask := level.equals(name)).any()}
    if not by_level:
        return []
    views = list(by_level.values())
    for number, view in enumerate(views):
        view["trace"]["visible"] = number == 0
    drawn = chart(
        [view["trace"] for view in views],
        "From base to candidate step time: what got slower, and what faster",
        110 + 28 * max(len(view["trace"]["y"]) for view in views),
        showlegend=False,
        xaxis=axis("", **views[0]["xaxis"]),
        yaxis=views[0]["yaxis"],
    )
    drawn["layout"]["xaxis"]["title"] = {"text": views[0]["title"]}
    if len(views) > 1:
        drawn["layout"]["updatemenus"] = menu(
            "update",
            {
                f"by {name}": [
                    {"visible": [other is view for other in views]},
                    {
                        "xaxis.range": view["xaxis"]["range"],
                        "xaxis.title.text": view["title"],
                        **{f"yaxis.{key}": view["yaxis"][key] for key in ("range", "tickvals", "ticktext")},
                    },
                ]
                for name, view in by_level.items()
            },
        )
    return [drawn]


def _view(part: Table) -> dict[str, Any]:
    """One trace of a level, and what the axes are for it."""
    # The base, the largest differences, all others as one, and the candidate.
    base, cand = (part.array(name) for name in ("base_ns", "cand_ns"))
    delta = np.abs(cand - base)
    order = np.argsort(-delta, kind="stable")
    large = order[delta[order] >= max(JOINED_SHARE * delta.max(), 1)][:_BARS]
    small = np.sort(order[len(large) :])
    notes = [
        "noise between steps unknown" if noise == "unknown" else f"{noise} the noise between steps"
        for noise in part.texts("noise", large)
    ]
    rows = list(zip(part.texts("name", large), base[large], cand[large], notes, strict=True))
    if len(small):
        note = f"{len(small):,} with little or no difference"
        rows.append(("rest", base[small].sum(), cand[small].sum(), note))
    base_ns, cand_ns = int(base.sum()), int(cand.sum())
    bars = [_WaterfallBar("base", start=0, end=base_ns, base=base_ns, cand=cand_ns, total=True)]
    for name, before, after, note in rows:
        start, end = bars[-1].end, bars[-1].end + int(after - before)
        bars.append(_WaterfallBar(name, start, end, base=int(before), cand=int(after), note=note))
    bars.append(_WaterfallBar("candidate", start=0, end=cand_ns, base=base_ns, cand=cand_ns, total=True))
    ends = [bar.end for bar in bars]
    high, span = max(ends), max(ends) - min(ends)
    cropped = 0 < span < _CROPPED * high
    axis_start = max(min(ends) - span, 0) if cropped else min(*ends, 0)
    room = 0.13 * (high - axis_start)
    # A bar that began outside of the axis would have its number there as well.
    starts = [max(bar.start, axis_start) for bar in bars]
    lengths = [end - start for start, end in zip(starts, ends, strict=True)]
    difference = cand_ns - base_ns
    hover = []
    for bar in bars:
        if bar.total:
            hover.append(f"{bar.name}: {bar.text} ms per step")
            continue
        share = f", {(bar.end - bar.start) / difference:.1%} of the difference" if difference else ""
        sides = f"base {bar.base / 1e6:,.3f} ms, candidate {bar.cand / 1e6:,.3f} ms"
        hover.append("<br>".join((wrapped(bar.name), sides, f"{bar.text} ms{share}", bar.note)))
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
        customdata=[[text] for text in hover],
        hovertemplate="%{customdata[0]}<extra></extra>",
    )
    return {
        "trace": trace,
        "title": "step time (ms), not from 0" if cropped else "step time (ms)",
        "xaxis": {"range": ms([axis_start, high + room])},
        "yaxis": rows_axis([bar.name for bar in bars]),
    }


@figure("diff")
@needs("icicle", "node", "parent", "level", "name", *_SIDES)
def step_icicles(nodes: Table) -> list[Figure]:
    """Both steps as boxes beside each other."""
    top = nodes.array("parent") < 0
    totals = {side: int(nodes.array(side)[top].sum()) for side in _SIDES}
    if not all(totals.values()):
        return []
    color = category_colors(nodes.texts("name", nodes.coded("level").equals("category")))
    heights = [[round(1 - size / max(totals.values()), 5), 1] for size in totals.values()]
    traces = []
    for number, side in enumerate(_SIDES):
        side_nodes = nodes.take(nodes.array(side) > 0)
        sizes = side_nodes.array(side)
        total_ns = int(sizes[side_nodes.array("parent") < 0].sum())
        visible = int((sizes >= _LEAST * total_ns).sum())
        tree = select(side_nodes, min(max(visible, 1), _NODES), side)
        other, name = ("cand_ns", "candidate") if side == "base_ns" else ("base_ns", "base")
        other_ns = side_nodes.array(other)[tree.rows].tolist()
        trace = icicle(
            tree,
            side_nodes.texts("name", tree.rows),
            side_nodes.texts("level", tree.rows),
            sizes[tree.rows].tolist(),
            root=(_SIDES[side], total_ns),
            color=color,
            notes=[f"{name} {milliseconds(ns, 3)}" if ns else f"not in the {name}" for ns in other_ns],
        )
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


class _Cut(NamedTuple):
    """One level of the waterfall: parts with most change first, the last one may be _REST."""

    names: list[str]  # of the parts
    ns: Int  # one row a part, one column a rung: what it takes of a step
    delta: Int  # one row a part, one column a rung: its difference from the rung before, 0 for the baseline


class _Move(NamedTuple):
    """One part of one rung: `ns` is its length, always positive."""

    rung: int
    part: int
    start: int
    ns: int
    delta: int


@figure("ladder")
def ladder(result: Result) -> list[Figure]:
    """Table `rungs` as bars; table `waterfall` as steps from rung to rung, and as the make-up of each."""
    rungs = table(result, "rungs", "rung", "name", "speedup", "spread", "tokens_per_s", "peak_bytes")
    cuts = table(result, "waterfall", "rung", "rung_name", "level", "name", "base_ns", "cand_ns", "delta_ns")
    if rungs is None or cuts is None:
        return []
    names = rungs.texts("name")[:_RUNGS]
    levels: dict[str, _Cut] = {}
    count = range(len(names))
    for level in dict.fromkeys(cuts.texts("level")):
        of_level = cuts.take(cuts.coded("level").equals(level) & (cuts.array("rung") < len(names)))
        parts, _, ns = of_level.pivot("name", "rung", "cand_ns", count)
        delta = of_level.pivot("name", "rung", "delta_ns", count).values
        ns[:, 0] = of_level.pivot("name", "rung", "base_ns", [1]).values[:, 0]
        order = np.argsort(-np.abs(delta).sum(axis=1), kind="stable")
        part_names = [parts[index].strip("()") for index in order.tolist()]
        if len(part_names) > _PARTS + 1:
            part_names = [*part_names[:_PARTS], _REST]
        levels[level] = _Cut(part_names, folded(ns[order], _PARTS), folded(delta[order], _PARTS))
    # What a step of each rung is made of, by the first level.
    level, cut = next(iter(levels.items()))
    total_ns = np.maximum(cut.ns.sum(axis=0), 1)
    times = dict(zip(cut.names, cut.ns, strict=True))
    shares = {name: ns / total_ns for name, ns in times.items()}
    make_up = stacked_bars(f"Traced step of each rung by {level}", names, times, shares)
    drawn = [_rung_waterfall(names, levels), make_up]
    # Without a measured baseline there is nothing to hold the others against.
    return [_throughput(rungs, names), *drawn] if rungs.array("speedup")[0] > 0 else drawn


def _throughput(rungs: Table, names: Sequence[str]) -> Figure:
    """Throughput in baselines, and peak memory beside it where it was measured."""
    rungs = rungs.take(slice(len(names)))
    speedup, spread, rate, peak = (
        rungs.array(key) for key in ("speedup", "spread", "tokens_per_s", "peak_bytes")
    )
    beside = bool((peak >= 0).any())
    hover = [
        f"{safe(name, 60)}<br>{tokens:,} tokens/s, {times:.3f} × the baseline's"
        for name, tokens, times in zip(names, rate, speedup, strict=True)
    ]
    known = speedup > 0
    bars = {
        **_rung_bars(np.where(known, speedup, 0), [GREY, *[BLUE] * (len(names) - 1)], hover),
        "name": "throughput",
        # The quartiles of a step time are, to first order, those of its inverse.
        "error_x": {"type": "data", "array": rounded(speedup * spread / 2 * known, 4), "thickness": 1},
        "text": [
            f"{times:.2f} ×  –  {tokens:,} tokens/s" if times > 0 else "not timed"
            for times, tokens in zip(speedup, rate, strict=True)
        ],
    }
    longest = float((speedup * (1 + np.maximum(spread, 0) / 2)).max())
    drawn = chart(
        [bars],
        f"Throughput of each rung{' and peak memory' if beside else ''}; whiskers: quartiles of timed steps",
        110 + 34 * len(names),
        showlegend=False,
        xaxis=axis("throughput / baseline", range=[0, longest * 1.02], domain=[0, 0.66 if beside else 1]),
        yaxis=rows_axis(names),
    )
    if beside:
        gib = np.where(peak >= 0, peak, 0) / GIB
        labels = [
            f"{value:.2f} GiB" if size_bytes >= 0 else "not measured"
            for value, size_bytes in zip(gib, peak, strict=True)
        ]
        drawn["data"].append(
            {
                **_rung_bars(gib, [TEAL] * len(names), labels),
                "name": "peak memory",
                "xaxis": "x2",
                "text": labels,
            }
        )
        drawn["layout"]["xaxis2"] = axis(
            "peak memory (GiB)", range=[0, float(gib.max()) * 1.02 or 1], domain=[0.7, 1]
        )
        drawn["layout"]["xaxis2"]["anchor"] = "y"
    return drawn


def _rung_bars(values: NDArray[Any], color: Sequence[str], hover: Sequence[str]) -> dict[str, Any]:
    return horizontal_bars(
        y=list(range(len(values))),
        x=rounded(values, 5),
        width=0.68,
        marker={"color": list(color)},
        textposition="inside",
        insidetextanchor="start",
        insidetextfont={"color": "#ffffff"},
        customdata=[[text] for text in hover],
        hovertemplate="%{customdata[0]}<extra></extra>",
    )


def _rung_waterfall(names: Sequence[str], levels: dict[str, _Cut]) -> Figure:
    """From step to step: what a rung saves goes left in the upper half of its row, its costs right below."""
    steps = next(iter(levels.values())).ns.sum(axis=0)
    # The parts of each rung, those that became shorter first: end to end they lead from step to step.
    moves: dict[str, list[_Move]] = {level: [] for level in levels}
    for level, cut in levels.items():
        for rung in range(1, len(steps)):
            delta = cut.delta[:, rung]
            position = int(steps[rung - 1])
            for part in np.flatnonzero(delta < 0)[np.argsort(delta[delta < 0], kind="stable")].tolist():
                position += int(delta[part])
                moves[level].append(_Move(rung, part, position, -int(delta[part]), int(delta[part])))
            for part in np.flatnonzero(delta > 0)[np.argsort(-delta[delta > 0], kind="stable")].tolist():
                moves[level].append(_Move(rung, part, position, int(delta[part]), int(delta[part])))
                position += int(delta[part])
    ends = [end for each in moves.values() for move in each for end in (move.start, move.start + move.ns)]
    high, low = max(int(steps.max()), *ends), min(int(steps.min()), *ends)
    axis_start = low - _GAP * (high - low) if low > _LADDER_CROPPED * high else 0.0
    # The step of each rung, pale but for the baseline's, and its numbers behind all that is drawn of it.
    last = steps.copy()
    np.maximum(last[1:], last[:-1], out=last[1:])
    texts = [f" {milliseconds(steps[0], 3)}"]
    texts += [
        f" {(after - before) / 1e6:+,.3f} → {milliseconds(after, 3)}"
        for before, after in zip(steps[:-1].tolist(), steps[1:].tolist(), strict=True)
    ]
    step_bars = horizontal_bars(
        showlegend=False,
        y=list(range(len(steps))),
        base=axis_start / 1e6,
        x=ms(steps - axis_start),
        width=0.66,
        marker={"color": [GREY, *["rgba(152,161,173,0.16)"] * (len(steps) - 1)]},
        customdata=[[f"{milliseconds(ns, 3)} per step"] for ns in steps.tolist()],
        hovertemplate="%{customdata[0]}<extra></extra>",
    )
    data = [step_bars, row_labels(last, texts)]
    for number, (level, cut) in enumerate(levels.items()):
        color = colors(cut.names) | {_REST: GREY}
        for part, name in enumerate(cut.names):
            part_moves = [move for move in moves[level] if move.part == part]
            bars = horizontal_bars(
                name=safe(name.replace("_", " "), 40),
                marker={"color": color[name]},
                y=[round(move.rung + (-0.16 if move.delta < 0 else 0.16), 2) for move in part_moves],
                base=ms([move.start for move in part_moves]),
                x=ms([move.ns for move in part_moves]),
                width=0.3,
                customdata=[[safe(names[m.rung], 60), f"{m.delta / 1e6:+,.3f}"] for m in part_moves],
                hovertemplate=f"%{{customdata[0]}}<br>{wrapped(name)} %{{customdata[1]}} ms<extra></extra>",
            )
            data.append(bars | {"visible": number == 0})
    cropped = ", not from 0" if axis_start else ""
    drawn = chart(
        data,
        "From rung to rung: what got shorter (upper half, to the left) and longer (lower half)",
        140 + 44 * len(names),
        barmode="overlay",
        showlegend=True,
        xaxis=axis(f"traced step (ms){cropped}", range=ms([axis_start, high + 0.32 * (high - axis_start)])),
        yaxis=rows_axis(names),
    )
    if len(levels) > 1:
        # The steps and their labels stay visible whatever level is chosen.
        of_bar = [level for level, cut in levels.items() for _ in cut.names]
        choices = {
            f"by {level}": [{"visible": [True, True, *(other == level for other in of_bar)]}]
            for level in levels
        }
        drawn["layout"]["updatemenus"] = menu("restyle", choices)
    return drawn

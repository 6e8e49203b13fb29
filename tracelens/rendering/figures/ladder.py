"""A ladder of optimisations: throughput and memory by rung, and the way from step time to step time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tracelens.arrays import Int
from tracelens.rendering.figures.base import (
    axis,
    chart,
    folded,
    horizontal_bars,
    menu,
    ms,
    rounded,
    row_labels,
    rows_axis,
    safe,
    stacked_bars,
    table,
    wrapped,
)
from tracelens.rendering.figures.colors import BLUE, GREY, TEAL, colors
from tracelens.rendering.figures.figure import Figure, figure
from tracelens.table import Result, Table
from tracelens.units import GIB, milliseconds

_ROWS = 40
"""Rungs that are drawn; each is a row."""
_PARTS = 9
"""Parts of the step that have a colour of their own; the others are one."""
REST = "rest"
_CROPPED = 0.45
"""The axis begins at zero unless all that is drawn lies above this share of the longest step."""
_GAP = 0.2


@figure("ladder")
def ladder(result: Result) -> list[Figure]:
    """Table `rungs` as bars; table `waterfall` as steps from rung to rung, and as the make-up of each."""
    rungs = table(result, "rungs", "rung", "name", "speedup", "spread", "tokens_per_s", "peak_bytes")
    cuts = table(result, "waterfall", "rung", "rung_name", "level", "name", "base_ns", "cand_ns", "delta_ns")
    if rungs is None or cuts is None:
        return []
    names = rungs.texts("name")[:_ROWS]
    levels = {level: _cut(cuts, level, len(names)) for level in dict.fromkeys(cuts.texts("level"))}
    drawn = [_waterfall(names, levels)]
    first = next(iter(levels))
    drawn.append(_make_up(names, first, levels[first]))
    # Without a measured baseline there is nothing to hold the others against.
    return [_throughput(rungs, names), *drawn] if rungs.array("speedup")[0] > 0 else drawn


class _Cut(NamedTuple):
    """One level of the waterfall: parts with most change first, the last one may be REST.

    Attributes:
        names: of the parts.
        ns: one row a part, one column a rung: what it takes of a step.
        delta: one row a part, one column a rung: its difference from the rung before, 0 for the baseline.
    """

    names: list[str]
    ns: Int
    delta: Int


def _cut(cuts: Table, level: str, count: int) -> _Cut:
    of_level = cuts.take(cuts.coded("level").equals(level) & (cuts.array("rung") < count))
    parts, _, ns = of_level.pivot("name", "rung", "cand_ns", range(count))
    delta = of_level.pivot("name", "rung", "delta_ns", range(count)).values
    ns[:, 0] = of_level.pivot("name", "rung", "base_ns", [1]).values[:, 0]
    order = np.argsort(-np.abs(delta).sum(axis=1), kind="stable")
    names = [parts[index].strip("()") for index in order.tolist()]
    if len(names) > _PARTS + 1:
        names = [*names[:_PARTS], REST]
    return _Cut(names, folded(ns[order], _PARTS), folded(delta[order], _PARTS))


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
        **_bars(np.where(known, speedup, 0), [GREY, *[BLUE] * (len(names) - 1)], hover),
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
            {**_bars(gib, [TEAL] * len(names), labels), "name": "peak memory", "xaxis": "x2", "text": labels}
        )
        drawn["layout"]["xaxis2"] = axis(
            "peak memory (GiB)", range=[0, float(gib.max()) * 1.02 or 1], domain=[0.7, 1]
        )
        drawn["layout"]["xaxis2"]["anchor"] = "y"
    return drawn


def _bars(values: NDArray[Any], color: Sequence[str], hover: Sequence[str]) -> dict[str, Any]:
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


def _make_up(names: Sequence[str], level: str, cut: _Cut) -> Figure:
    """What a step of each rung is made of."""
    total_ns = np.maximum(cut.ns.sum(axis=0), 1)
    parts = dict(zip(cut.names, cut.ns, strict=True))
    shares = {name: ns / total_ns for name, ns in parts.items()}
    return stacked_bars(f"Traced step of each rung by {level}", names, parts, shares)


def _waterfall(names: Sequence[str], levels: dict[str, _Cut]) -> Figure:
    """From step to step: what a rung saves goes left in the upper half of its row, its costs right below."""
    steps = next(iter(levels.values())).ns.sum(axis=0)
    moves = {level: list(_moves(cut, steps)) for level, cut in levels.items()}
    ends = [
        end
        for level_moves in moves.values()
        for move in level_moves
        for end in (move.start, move.start + move.ns)
    ]
    high, low = max(int(steps.max()), *ends), min(int(steps.min()), *ends)
    axis_start = low - _GAP * (high - low) if low > _CROPPED * high else 0.0
    data = [_ends(steps, axis_start), _labels(steps)]
    for number, (level, cut) in enumerate(levels.items()):
        color = colors(cut.names) | {REST: GREY}
        for part, name in enumerate(cut.names):
            part_moves = [move for move in moves[level] if move.part == part]
            data.append(_segments(name, color[name], part_moves, names) | {"visible": number == 0})
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
        drawn["layout"]["updatemenus"] = menu(
            "restyle", {f"by {level}": _visible(levels, level) for level in levels}
        )
    return drawn


class _Move(NamedTuple):
    """One part of one rung: `ns` is its length, always positive."""

    rung: int
    part: int
    start: int
    ns: int
    delta: int


def _moves(cut: _Cut, steps: Int) -> Iterator[_Move]:
    """The parts of each rung, those that became shorter first: end to end they lead from step to step."""
    for rung in range(1, len(steps)):
        delta = cut.delta[:, rung]
        position = int(steps[rung - 1])
        for part in np.flatnonzero(delta < 0)[np.argsort(delta[delta < 0], kind="stable")].tolist():
            position += int(delta[part])
            yield _Move(rung, part, position, -int(delta[part]), int(delta[part]))
        for part in np.flatnonzero(delta > 0)[np.argsort(-delta[delta > 0], kind="stable")].tolist():
            yield _Move(rung, part, position, int(delta[part]), int(delta[part]))
            position += int(delta[part])


def _segments(name: str, color: str, moves: Sequence[_Move], names: Sequence[str]) -> dict[str, Any]:
    return horizontal_bars(
        name=safe(name.replace("_", " "), 40),
        marker={"color": color},
        y=[round(move.rung + (-0.16 if move.delta < 0 else 0.16), 2) for move in moves],
        base=ms([move.start for move in moves]),
        x=ms([move.ns for move in moves]),
        width=0.3,
        customdata=[[safe(names[move.rung], 60), f"{move.delta / 1e6:+,.3f}"] for move in moves],
        hovertemplate=f"%{{customdata[0]}}<br>{wrapped(name)} %{{customdata[1]}} ms<extra></extra>",
    )


def _ends(steps: Int, axis_start: float) -> dict[str, Any]:
    """The step of each rung, pale but for the baseline's."""
    return horizontal_bars(
        showlegend=False,
        y=list(range(len(steps))),
        base=axis_start / 1e6,
        x=ms(steps - axis_start),
        width=0.66,
        marker={"color": [GREY, *["rgba(152,161,173,0.16)"] * (len(steps) - 1)]},
        customdata=[[f"{milliseconds(ns, 3)} per step"] for ns in steps.tolist()],
        hovertemplate="%{customdata[0]}<extra></extra>",
    )


def _labels(steps: Int) -> dict[str, Any]:
    """The numbers of each rung, behind all that is drawn of it."""
    ends = steps.copy()
    np.maximum(ends[1:], ends[:-1], out=ends[1:])
    texts = [f" {milliseconds(steps[0], 3)}"]
    texts += [
        f" {(after - before) / 1e6:+,.3f} → {milliseconds(after, 3)}"
        for before, after in zip(steps[:-1].tolist(), steps[1:].tolist(), strict=True)
    ]
    return row_labels(ends, texts)


def _visible(levels: dict[str, _Cut], shown: str) -> list[Any]:
    """What is visible when a level is chosen; the steps and their labels stay."""
    return [{"visible": [True, True, *(level == shown for level, cut in levels.items() for _ in cut.names)]}]

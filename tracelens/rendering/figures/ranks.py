"""Times of ranks: one stacked bar a rank, or of many ranks a heat map of ranks by parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from tracelens.rendering.figures.base import axis, chart, ranks, rounded, safe, stacked_bars
from tracelens.rendering.figures.colors import SEQUENTIAL
from tracelens.rendering.figures.figure import Figure
from tracelens.table import Table
from tracelens.units import duration

MOST_BARS = 16
"""Ranks with a bar each; more of them are a heat map."""
_CELLS = 4800


def rank_times(
    title: str,
    ranks: Sequence[int],
    parts: Mapping[str, NDArray[Any]],
    fractions: Mapping[str, NDArray[Any]],
    color: Mapping[str, str] | None = None,
) -> Figure:
    """What the time of each rank is made of.

    Args:
        title: what one sees.
        ranks: in the order shown.
        parts: name of the part to ns, one value a rank; in the order stacked.
        fractions: the same parts as share of the rank's whole, 0-1.
        color: of the parts in bars; by their names if it is not given.
    """
    if len(ranks) <= MOST_BARS:
        return stacked_bars(title, [f"rank {rank}" for rank in ranks], parts, fractions, color)
    return _heat_map(title, ranks, parts, fractions)


def rank_bars(
    title: str,
    data: Table,
    part: str,
    shown: Sequence[int] = (),
    parts: Sequence[str] = (),
    color: Mapping[str, str] | None = None,
) -> Figure:
    """What the time of each rank is made of, from the values of a text column.

    Args:
        title: what one sees.
        data: columns rank, `part`, dur_ns and fraction.
        part: the text column.
        shown: ranks, in order; by default all.
        parts: which values of it, in the order stacked; by default all, in the order of the table.
        color: of the parts in bars; by their names if it is not given.
    """
    shown = shown or ranks(data)
    times, fractions = (data.pivot(part, "rank", name, shown).by_row() for name in ("dur_ns", "fraction"))
    return rank_times(title, shown, {name: times[name] for name in parts or times}, fractions, color)


def ranks_that_fit(parts: int) -> int:
    """Ranks that a heat map of so many parts can hold."""
    return max(_CELLS // max(parts, 1), 1)


def _heat_map(
    title: str,
    ranks: Sequence[int],
    parts: Mapping[str, NDArray[Any]],
    fractions: Mapping[str, NDArray[Any]],
) -> Figure:
    """Parts by ranks. Each row has a scale of its own, from 0 to its largest time: small parts show, too."""
    most = ranks_that_fit(len(parts))
    note = f" (the first {most} of {len(ranks)} ranks)" if len(ranks) > most else ""
    ranks = ranks[:most]
    names, shades, hover = [], [], []
    for name, all_times in parts.items():
        times, share = all_times[:most], fractions[name][:most]
        readable = safe(name.replace("_", " "), 40)
        low, high = f"{share.min():.0%}", f"{share.max():.0%}"
        names.append(f"{readable} {low if low == high else f'{low} to {high}'}")
        shades.append(rounded(times / max(float(times.max(initial=0)), 1.0), 4))
        hover.append(
            [
                f"rank {rank}, {readable}: {duration(ns)}, {part:.1%}"
                for rank, ns, part in zip(ranks, times.tolist(), share.tolist(), strict=True)
            ]
        )
    drawn: dict[str, Any] = {
        "type": "heatmap",
        "x": [str(rank) for rank in ranks],
        "y": names,
        "z": shades,
        "customdata": hover,
        "hovertemplate": "%{customdata}<extra></extra>",
        "zmin": 0,
        "zmax": 1,
        "xgap": 1,
        "ygap": 2,
        "colorscale": SEQUENTIAL,
        "colorbar": {
            "title": {"text": "of max"},
            "tickformat": ".0%",
            "tickvals": [0, 0.5, 1],
            "thickness": 12,
        },
    }
    return chart(
        [drawn],
        f"{title}{note}",
        120 + 34 * len(names),
        showlegend=False,
        xaxis=axis("rank", type="category", showgrid=False),
        yaxis=axis("", type="category", autorange="reversed", showgrid=False),
    )

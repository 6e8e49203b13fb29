"""Which rank runs what kind of step, and when."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracelens.rendering.figures.base import (
    axis,
    chart,
    horizontal_bars,
    ms,
    needs,
    ranks,
    rows_axis,
    safe,
)
from tracelens.rendering.figures.colors import SERVING, colors
from tracelens.rendering.figures.figure import Figure, figure
from tracelens.rendering.figures.ranks import rank_bars
from tracelens.table import Coded, Result, Table

_RANKS = 64
_MARKS = 3000


@figure("serving")
def serving(result: Result) -> list[Figure]:
    """Table `steps` as one lane a rank, coloured by kind; table `ranks` as bars of time by kind."""
    return [*_lanes(result), *_kinds(result)]


@needs("steps", "rank", "index", "kind", "dummy", "tokens", "ts_ns", "dur_ns")
def _lanes(steps: Table) -> list[Figure]:
    shown = ranks(steps)[:_RANKS]
    drawn = steps.take(np.isin(steps.array("rank"), shown))
    truncation = ""
    if len(drawn) > _MARKS:
        truncation = f" (the first {_MARKS:,} of {len(steps):,} steps)"
    elif len(drawn) < len(steps):
        truncation = f" (ranks {shown[0]} to {shown[-1]})"
    drawn = drawn.take(np.argsort(drawn.array("ts_ns"), kind="stable")[:_MARKS])
    names = Coded.of(_names(drawn))
    first = int(drawn.array("ts_ns").min())
    traces = [_marks(drawn.take(names.equals(name)), shown, first, name) for name in sorted(names.values)]
    return [
        chart(
            traces,
            f"Steps of each rank by kind, on one clock{truncation}",
            130 + min(26, max(9, 832 // len(shown))) * len(shown),
            barmode="overlay",
            showlegend=True,
            xaxis=axis("time (ms)"),
            yaxis=rows_axis([f"rank {number}" for number in shown]),
        )
    ]


def _names(steps: Table) -> list[str]:
    """What each step is drawn as: its kind, unless no request is served."""
    dummy = steps.array("dummy").tolist()
    return [
        "without a request" if empty else kind for kind, empty in zip(steps.texts("kind"), dummy, strict=True)
    ]


def _marks(steps: Table, shown: list[int], first: int, name: str) -> dict[str, Any]:
    columns = (steps.values(column) for column in ("index", "kind", "tokens"))
    hover = [
        [index, safe(kind, 30), f"{count:,} tokens" if count >= 0 else "tokens unknown"]
        for index, kind, count in zip(*columns, strict=True)
    ]
    return horizontal_bars(
        name=safe(name, 30),
        marker={"color": colors([name], SERVING)[name]},
        width=0.8,
        y=np.searchsorted(shown, steps.array("rank")).tolist(),
        base=ms(steps.array("ts_ns") - first),
        x=ms(steps.array("dur_ns")),
        customdata=hover,
        hovertemplate="step %{customdata[0]}: %{customdata[1]}, %{customdata[2]}, %{x:,.3f} ms",
    )


@needs("ranks", "rank", "kind", "dur_ns", "fraction")
def _kinds(per_kind: Table) -> list[Figure]:
    color = colors(per_kind.texts("kind"), SERVING)
    return [rank_bars("Time in steps of each kind", per_kind, "kind", ranks(per_kind), color=color)]

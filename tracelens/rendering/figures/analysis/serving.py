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
    rank_bars,
    ranks,
    rows_axis,
    safe,
)
from tracelens.rendering.figures.colors import BLUE, GREY, ORANGE, TEAL, VIOLET
from tracelens.rendering.figures.figure import Figure, figure
from tracelens.table import Coded, Result, Table

_RANKS = 32
_MARKS = 3000
_COLOR = {"prefill": ORANGE, "decode": BLUE, "mixed": VIOLET, "draft": TEAL, "without a request": GREY}
_OTHER = "#b07a5a"


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
            130 + 26 * len(shown),
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
        marker={"color": _COLOR.get(name, _OTHER)},
        width=0.8,
        y=np.searchsorted(shown, steps.array("rank")).tolist(),
        base=ms(steps.array("ts_ns") - first),
        x=ms(steps.array("dur_ns")),
        customdata=hover,
        hovertemplate="step %{customdata[0]}: %{customdata[1]}, %{customdata[2]}, %{x:,.3f} ms",
    )


@needs("ranks", "rank", "kind", "dur_ns", "fraction")
def _kinds(per_kind: Table) -> list[Figure]:
    shown = ranks(per_kind)[:_RANKS]
    kinds = dict.fromkeys(per_kind.texts("kind"))
    color = {kind: _COLOR.get(kind, GREY if kind == "idle" else _OTHER) for kind in kinds}
    title = "Time in steps of each kind" + (
        f" (first {_RANKS} ranks)" if len(ranks(per_kind)) > _RANKS else ""
    )
    return [rank_bars(title, per_kind, "kind", shown, color=color)]

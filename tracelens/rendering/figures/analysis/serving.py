"""Which rank runs what kind of step, and when."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracelens.rendering.figures.base import (
    BLUE,
    GREY,
    ORANGE,
    TEAL,
    VIOLET,
    axis,
    by_row,
    coded,
    layout,
    ms,
    ranks,
    rows_axis,
    safe,
    stacked_bars,
    table,
)
from tracelens.rendering.figures.figure import Figure, figure
from tracelens.table import Result, Table

_RANKS = 32
_MARKS = 3000
_COLOR = {"prefill": ORANGE, "decode": BLUE, "mixed": VIOLET, "draft": TEAL, "without a request": GREY}
_OTHER = "#b07a5a"


@figure("serving")
def serving(result: Result) -> list[Figure]:
    """Table `steps` as one lane a rank, coloured by kind; table `ranks` as bars of time by kind."""
    return [*_lanes(result), *_kinds(result)]


def _lanes(result: Result) -> list[Figure]:
    steps = table(result, "steps", "rank", "index", "kind", "dummy", "tokens", "ts_ns", "dur_ns")
    if steps is None:
        return []
    shown = ranks(steps)[:_RANKS]
    rank, start = steps.array("rank"), steps.array("ts_ns")
    rows = np.flatnonzero(np.isin(rank, shown))
    rows = rows[np.argsort(start[rows], kind="stable")]
    truncation = ""
    if len(rows) > _MARKS:
        truncation = f" (the first {_MARKS:,} of {len(steps):,} steps)"
    elif len(rows) < len(steps):
        truncation = f" (ranks {shown[0]} to {shown[-1]})"
    rows = rows[:_MARKS]
    first = int(start[rows].min())
    traces = [
        _marks(steps, rows[[name == kind for name in _names(steps, rows)]], shown, first, kind)
        for kind in sorted(set(_names(steps, rows)))
    ]
    return [
        {
            "data": traces,
            "layout": layout(
                f"Steps of each rank by kind, on one clock{truncation}",
                130 + 26 * len(shown),
                barmode="overlay",
                showlegend=True,
                xaxis=axis("time (ms)"),
                yaxis=rows_axis([f"rank {number}" for number in shown]),
            ),
        }
    ]


def _names(steps: Table, rows: np.ndarray) -> list[str]:
    """What each step is drawn as: its kind, unless no request is served."""
    dummy = steps.array("dummy")[rows].tolist()
    kinds = steps.texts("kind", rows)
    return ["without a request" if empty else kind for kind, empty in zip(kinds, dummy, strict=True)]


def _marks(steps: Table, rows: np.ndarray, shown: list[int], first: int, name: str) -> dict[str, Any]:
    tokens = steps.array("tokens")[rows].tolist()
    hover = [
        [index, kind, f"{count:,} tokens" if count >= 0 else "tokens not told"]
        for index, kind, count in zip(
            steps.array("index")[rows].tolist(), steps.texts("kind", rows), tokens, strict=True
        )
    ]
    return {
        "type": "bar",
        "orientation": "h",
        "name": safe(name, 30),
        "marker": {"color": _COLOR.get(name, _OTHER)},
        "width": 0.8,
        "y": np.searchsorted(shown, steps.array("rank")[rows]).tolist(),
        "base": ms(steps.array("ts_ns")[rows] - first),
        "x": ms(steps.array("dur_ns")[rows]),
        "customdata": [[index, safe(kind, 30), text] for index, kind, text in hover],
        "hovertemplate": "step %{customdata[0]}: %{customdata[1]}, %{customdata[2]}, %{x:,.3f} ms",
    }


def _kinds(result: Result) -> list[Figure]:
    per_kind = table(result, "ranks", "rank", "kind", "dur_ns", "fraction")
    if per_kind is None:
        return []
    shown = ranks(per_kind)[:_RANKS]
    kinds = list(dict.fromkeys(coded(per_kind, "kind").values))
    row_of = {
        (rank, kind): row
        for row, (rank, kind) in enumerate(
            zip(per_kind.array("rank").tolist(), per_kind.texts("kind"), strict=True)
        )
    }
    kind_rows = {kind: [row_of.get((rank, kind)) for rank in shown] for kind in kinds}
    drawn = stacked_bars(
        "Time in steps of each kind" + (f" (first {_RANKS} ranks)" if len(ranks(per_kind)) > _RANKS else ""),
        [f"rank {rank}" for rank in shown],
        {kind: by_row(per_kind.array("dur_ns"), rows) for kind, rows in kind_rows.items()},
        {kind: by_row(per_kind.array("fraction"), rows) for kind, rows in kind_rows.items()},
    )
    for trace, kind in zip(drawn["data"], kinds, strict=True):
        trace["marker"]["color"] = _COLOR.get(kind, GREY if kind == "idle" else _OTHER)
    return [drawn]

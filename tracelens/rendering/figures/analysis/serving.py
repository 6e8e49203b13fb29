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
    found = table(result, "steps", "rank", "index", "kind", "dummy", "tokens", "ts_ns", "dur_ns")
    if found is None:
        return []
    shown = ranks(found)[:_RANKS]
    rank, start = found.array("rank"), found.array("ts_ns")
    rows = np.flatnonzero(np.isin(rank, shown))
    rows = rows[np.argsort(start[rows], kind="stable")]
    few = ""
    if len(rows) > _MARKS:
        few = f" (the first {_MARKS:,} of {len(found):,} steps)"
    elif len(rows) < len(found):
        few = f" (ranks {shown[0]} to {shown[-1]})"
    rows = rows[:_MARKS]
    first = int(start[rows].min())
    traces = [
        _marks(found, rows[[name == one for name in _names(found, rows)]], shown, first, one)
        for one in sorted(set(_names(found, rows)))
    ]
    return [
        {
            "data": traces,
            "layout": layout(
                f"Steps of each rank by kind, on one clock{few}",
                130 + 26 * len(shown),
                barmode="overlay",
                showlegend=True,
                xaxis=axis("time (ms)"),
                yaxis=rows_axis([f"rank {one}" for one in shown]),
            ),
        }
    ]


def _names(found: Table, rows: np.ndarray) -> list[str]:
    """What each step is drawn as: its kind, unless no request is served."""
    dummy = found.array("dummy")[rows].tolist()
    kinds = found.texts("kind", rows)
    return ["without a request" if empty else kind for kind, empty in zip(kinds, dummy, strict=True)]


def _marks(found: Table, rows: np.ndarray, shown: list[int], first: int, name: str) -> dict[str, Any]:
    tokens = found.array("tokens")[rows].tolist()
    about = [
        [index, kind, f"{count:,} tokens" if count >= 0 else "tokens not told"]
        for index, kind, count in zip(
            found.array("index")[rows].tolist(), found.texts("kind", rows), tokens, strict=True
        )
    ]
    return {
        "type": "bar",
        "orientation": "h",
        "name": safe(name, 30),
        "marker": {"color": _COLOR.get(name, _OTHER)},
        "width": 0.8,
        "y": np.searchsorted(shown, found.array("rank")[rows]).tolist(),
        "base": ms(found.array("ts_ns")[rows] - first),
        "x": ms(found.array("dur_ns")[rows]),
        "customdata": [[index, safe(kind, 30), text] for index, kind, text in about],
        "hovertemplate": "step %{customdata[0]}: %{customdata[1]}, %{customdata[2]}, %{x:,.3f} ms",
    }


def _kinds(result: Result) -> list[Figure]:
    found = table(result, "ranks", "rank", "kind", "dur_ns", "fraction")
    if found is None:
        return []
    shown = ranks(found)[:_RANKS]
    kinds = list(dict.fromkeys(coded(found, "kind").values))
    place = {
        (rank, kind): row
        for row, (rank, kind) in enumerate(
            zip(found.array("rank").tolist(), found.texts("kind"), strict=True)
        )
    }
    at = {kind: [place.get((rank, kind)) for rank in shown] for kind in kinds}
    drawn = stacked_bars(
        "Time in steps of each kind" + (f" (first {_RANKS} ranks)" if len(ranks(found)) > _RANKS else ""),
        [f"rank {rank}" for rank in shown],
        {kind: by_row(found.array("dur_ns"), rows) for kind, rows in at.items()},
        {kind: by_row(found.array("fraction"), rows) for kind, rows in at.items()},
    )
    for trace, kind in zip(drawn["data"], kinds, strict=True):
        trace["marker"]["color"] = _COLOR.get(kind, GREY if kind == "idle" else _OTHER)
    return [drawn]

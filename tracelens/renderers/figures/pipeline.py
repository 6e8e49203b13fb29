"""The Gantt chart of a pipeline: forward and backward of each micro-batch on all ranks, and the bubble."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracelens.renderers.figures import Figure, figure
from tracelens.renderers.figures._base import (
    BLUE,
    ORANGE,
    TEAL,
    VIOLET,
    axis,
    coded,
    layout,
    ms,
    ranks,
    rows_axis,
    safe,
    table,
    where,
)
from tracelens.schema import Result, Table

_MOST_ROWS = 48
_POINTS = 4000
_PASSES = {"forward": BLUE, "backward": TEAL}
_WAITS = {
    "ramp": "rgba(152,161,173,0.45)",
    "p2p_wait": ORANGE,
    "imbalance": VIOLET,
    "other_idle": "rgba(152,161,173,0.2)",
}


@figure("pipeline")
def pipeline(result: Result) -> list[Figure]:
    """Tables `spans` and `waits`: the first step of all ranks on one clock."""
    spans = table(result, "spans", "rank", "step", "stage", "chunk", "microbatch", "phase", "ts_ns", "dur_ns")
    if spans is None:
        return []
    step = coded(spans, "step")
    label = step.values[int(step.codes[0])]
    stages = spans.array("stage")
    order = {rank: int(stages[spans.array("rank") == rank][0]) for rank in ranks(spans)}
    # Stages of one pipeline below each other, as far as rank numbers tell.
    shown = sorted(order, key=lambda rank: (order[rank], rank))[: _rows_that_fit(spans, len(order))]
    drawn = _of(spans, label, shown)
    begin, end = _extent(drawn)
    traces = [
        _bars(where(drawn, mask), shown, begin, phase, _PASSES[phase])
        for phase in _PASSES
        if (mask := _is(drawn, "phase", phase)).any()
    ]
    waits = table(result, "waits", "rank", "step", "part", "ts_ns", "dur_ns")
    if waits is not None:
        waits = _longest(_of(waits, label, shown), _POINTS - len(drawn))
        traces += [
            _bars(where(waits, mask), shown, begin, part, _WAITS[part])
            for part in _WAITS
            if (mask := _is(waits, "part", part)).any()
        ]
    title = "Forward and backward of each micro-batch, and what the bubble between them is"
    if len(set(step.codes.tolist())) > 1:
        title += f": {safe(label, 40)}"
    if len(shown) < len(order):
        title += f" ({len(shown)} of {len(order)} ranks)"
    about = layout(
        title,
        110 + max(22, min(44, 480 // len(shown))) * len(shown),
        barmode="overlay",
        showlegend=True,
        xaxis=axis("time since the first forward (ms)", showgrid=False, range=ms([0, end - begin])),
        yaxis=rows_axis([f"rank {rank} stage {order[rank]}" for rank in shown]),
    )
    return [{"data": traces, "layout": about}]


def _rows_that_fit(spans: Table, count: int) -> int:
    """Ranks whose spans the figure can hold."""
    each = int(np.unique(spans.array("rank"), return_counts=True)[1].max())
    return max(1, min(_MOST_ROWS, count, _POINTS // each))


def _of(found: Table, label: str, shown: list[int]) -> Table:
    """The rows of one step and some ranks."""
    return where(found, _is(found, "step", label) & np.isin(found.array("rank"), shown))


def _is(found: Table, column: str, text: str) -> NDArray[np.bool_]:
    texts = coded(found, column)
    wanted: NDArray[np.bool_] = np.array([value == text for value in texts.values], dtype=bool)[texts.codes]
    return wanted


def _extent(found: Table) -> tuple[int, int]:
    start = found.array("ts_ns")
    return int(start.min()), int((start + found.array("dur_ns")).max())


def _longest(waits: Table, most: int) -> Table:
    """The longest pieces, in order of the table."""
    keep = np.zeros(len(waits), dtype=bool)
    keep[np.argsort(-waits.array("dur_ns"), kind="stable")[: max(most, 0)]] = True
    return where(waits, keep)


def _bars(found: Table, shown: list[int], begin: int, name: str, color: str) -> dict[str, Any]:
    """Bars of one kind; micro-batches have their number, chunks above the first one a paler bar."""
    place = {rank: row for row, rank in enumerate(shown)}
    bars: dict[str, Any] = {
        "type": "bar",
        "orientation": "h",
        "name": name.replace("_", " "),
        "marker": {"color": color, "line": {"width": 0}},
        "y": [place[rank] for rank in found.array("rank").tolist()],
        "width": 0.8,
        "base": ms(found.array("ts_ns") - begin),
        "x": ms(found.array("dur_ns")),
        "hovertemplate": "%{x:,.3f} ms from %{base:,.3f} ms",
    }
    if "microbatch" not in found.columns:
        return bars
    chunk = found.array("chunk")
    numbers = np.stack([found.array("microbatch"), chunk], axis=1).tolist()
    paler = np.round(1 - 0.5 * chunk / max(int(chunk.max(initial=0)) + 1, 1), 2).tolist()
    bars["marker"] |= {"opacity": paler, "line": {"width": 1, "color": "rgba(255,255,255,0.7)"}}
    return bars | {
        "customdata": numbers,
        "text": [str(microbatch) for microbatch, _ in numbers],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "hovertemplate": "micro-batch %{customdata[0]}, chunk %{customdata[1]}: " + bars["hovertemplate"],
    }

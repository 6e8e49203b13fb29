"""What every GPU stream did over time, and what each rank's time is made of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracelens.arrays import Float, Int
from tracelens.rendering.figures.base import (
    axis,
    chart,
    horizontal_bars,
    ms,
    needs,
    ranks,
    rounded,
    rows_axis,
)
from tracelens.rendering.figures.colors import KINDS
from tracelens.rendering.figures.figure import Figure, figure
from tracelens.rendering.figures.ranks import rank_bars
from tracelens.table import Result, Table

_POINTS = 5000
_STREAM = ("rank", "device", "stream")
_MOST_ROWS = 48
_VISIBLE = 0.05  # share of a lane that even the shortest work fills
_LANE = 0.8  # height of a row's lane; rows are one apart
_PARTS = ("computation", "exposed_comm", "exposed_memcpy", "exposed_memset", "idle")


@figure("timeline")
def timeline(result: Result) -> list[Figure]:
    """Table `strip`: kinds of work per stream over time; table `timeline`: one stacked bar a rank."""
    return [*_strip(result), *_stack(result)]


@needs("timeline", "rank", "metric", "dur_ns", "fraction")
def _stack(metrics: Table) -> list[Figure]:
    shown = ranks(metrics)
    times = metrics.pivot("metric", "rank", "dur_ns", shown).by_row()
    parts = [part for part in _PARTS if part in times and times[part].any()]
    title = "Time of each rank: computation, exposed communication and copies, idle"
    return [rank_bars(title, metrics, "metric", shown, parts)] if parts else []


@dataclass(frozen=True)
class _Pieces:
    """Stretches of one kind of work in the rows of the figure, as arrays of one length."""

    row: Int
    kind: Int  # index into KINDS
    ts_ns: Int
    dur_ns: Int
    busy: Float

    def moved(self, rows: dict[int, int]) -> _Pieces:
        """The pieces of these rows, under their new numbers."""
        row = np.array([rows.get(row, -1) for row in range(int(self.row.max()) + 1)])[self.row]
        return replace(self, row=row)[row >= 0]

    def __getitem__(self, rows: NDArray[Any]) -> _Pieces:
        return _Pieces(self.row[rows], self.kind[rows], self.ts_ns[rows], self.dur_ns[rows], self.busy[rows])


@needs("strip", *_STREAM, "kind", "ts_ns", "dur_ns", "busy_fraction")
def _strip(strip: Table) -> list[Figure]:
    streams, pieces = _pieces(strip)
    busiest = _busiest(streams, np.bincount(pieces.row, weights=pieces.dur_ns * pieces.busy))
    shown = [streams[index] for index in busiest]
    pieces = _coarse(pieces.moved({index: row for row, index in enumerate(busiest)}))
    below, filled = _stacked(pieces)
    traces = [
        _bars(pieces[of_kind], below[of_kind], filled[of_kind], kind)
        for index, kind in enumerate(KINDS)
        if (of_kind := pieces.kind == index).any()
    ]
    title = "GPU streams over time; lane fill shows the busy share"
    if len(streams) > len(shown):
        title += f" (the busiest {len(shown)} of {len(streams)} streams)"
    return [
        chart(
            traces,
            title,
            110 + max(22, min(44, 360 // len(shown))) * len(shown),
            barmode="overlay",
            showlegend=True,
            shapes=[_lane(index) for index in range(len(shown))],
            xaxis=axis(
                "time since the first GPU work (ms)",
                showgrid=False,
                range=ms([pieces.ts_ns.min(), (pieces.ts_ns + pieces.dur_ns).max()]),
            ),
            yaxis=rows_axis([_row_name(stream, streams) for stream in shown]),
        )
    ]


def _pieces(strip: Table) -> tuple[list[tuple[int, ...]], _Pieces]:
    """All (rank, device, stream) in order, and the pieces with their place among them as row."""
    keys = np.stack([strip.array(name) for name in _STREAM], axis=1)
    streams, row = np.unique(keys, axis=0, return_inverse=True)
    kind = strip.coded("kind")
    order = list(KINDS)
    kind_index = np.array([order.index(text) if text in order else len(order) for text in kind.values])
    numbers = (strip.array(name) for name in ("ts_ns", "dur_ns", "busy_fraction"))
    return [tuple(stream) for stream in streams.tolist()], _Pieces(
        row.ravel(), kind_index[kind.codes], *numbers
    )


def _lane(index: int) -> dict[str, Any]:
    """The faint ground of a row, so that an idle stream is seen as such."""
    half = _LANE / 2
    ground = {"type": "rect", "xref": "paper", "x0": 0, "x1": 1, "y0": index - half, "y1": index + half}
    return ground | {"layer": "below", "line": {"width": 0}, "fillcolor": "rgba(128,128,128,0.1)"}


def _busiest(streams: list[tuple[int, ...]], busy: NDArray[Any]) -> list[int]:
    """Places of the streams that are drawn, in order: of every rank the same number, those with most work."""
    ranks_ = sorted({stream[0] for stream in streams})
    most = max(1, _MOST_ROWS // len(ranks_))
    busiest: list[int] = []
    for rank in ranks_[:_MOST_ROWS]:
        rank_streams = [index for index, stream in enumerate(streams) if stream[0] == rank]
        busiest += sorted(sorted(rank_streams, key=lambda index: -busy[index])[:most])
    return busiest


def _row_name(stream: tuple[int, ...], streams: list[tuple[int, ...]]) -> str:
    one_device = len({key[:2] for key in streams}) == len({key[0] for key in streams})
    device = "" if one_device else f" gpu {stream[1]}"
    return f"rank {stream[0]}{device} stream {stream[2]}"


def _coarse(pieces: _Pieces) -> _Pieces:
    """The same strip cut at equal intervals when it has more pieces than a figure should hold."""
    if len(pieces.row) <= _POINTS:
        return pieces
    lanes = np.unique(pieces.row * len(KINDS) + pieces.kind)
    edges = np.linspace(
        pieces.ts_ns.min(), (pieces.ts_ns + pieces.dur_ns).max(), max(1, _POINTS // len(lanes)) + 1
    )
    edges = edges.astype(np.int64)
    parts = [
        _recut(pieces[(pieces.row == row) & (pieces.kind == kind)], edges)
        for row, kind in zip(*np.divmod(lanes, len(KINDS)), strict=True)
    ]
    return _Pieces(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _recut(lane: _Pieces, edges: Int) -> tuple[NDArray[Any], ...]:
    """Columns of the pieces between `edges` that one lane is busy in."""
    lane = lane[np.argsort(lane.ts_ns, kind="stable")]
    # Busy time so far grows from the start to the end of each piece and rests in between.
    time = np.stack([lane.ts_ns, lane.ts_ns + lane.dur_ns], axis=1).ravel()
    work = np.cumsum(lane.dur_ns * lane.busy)
    so_far = np.stack([np.append(0, work[:-1]), work], axis=1).ravel()
    busy = np.diff(np.interp(edges, np.maximum.accumulate(time), so_far))
    kept = np.flatnonzero(busy > 0)
    width = np.diff(edges)[kept]
    ones = np.ones(len(kept), np.int64)
    return ones * lane.row[0], ones * lane.kind[0], edges[kept], width, np.minimum(busy[kept] / width, 1)


def _stacked(pieces: _Pieces) -> tuple[Float, Float]:
    """Of each piece: what kinds before it fill of the lane at the same time, and what all of them fill.

    A stream does one thing at a time, but rounding may take the sum a little over one; it is one then.
    """
    order = np.lexsort((pieces.kind, pieces.ts_ns, pieces.row))
    row, start, busy = pieces.row[order], pieces.ts_ns[order], pieces.busy[order]
    new = np.append(True, (row[1:] != row[:-1]) | (start[1:] != start[:-1]))
    first = np.flatnonzero(new)
    group = np.cumsum(new) - 1
    before = np.cumsum(busy) - busy
    below, filled = np.empty(len(order)), np.empty(len(order))
    below[order] = before - before[first][group]
    filled[order] = np.maximum(np.add.reduceat(busy, first), 1)[group]
    return below, filled


def _bars(pieces: _Pieces, below: Float, filled: Float, kind: str) -> dict[str, Any]:
    height = np.maximum(pieces.busy / filled, _VISIBLE) * _LANE
    # The axis points down: the ground of a lane is at +half, and a bar begins at its upper edge.
    upper = _LANE / 2 - below / filled * _LANE - height
    return horizontal_bars(
        name=kind,
        marker={"color": KINDS[kind], "line": {"width": 0}},
        y=pieces.row.tolist(),
        width=rounded(height, 3),
        offset=rounded(upper, 3),
        base=ms(pieces.ts_ns),
        x=ms(pieces.dur_ns),
        customdata=rounded(pieces.busy, 3),
        hovertemplate="from %{base:,.3f} ms: %{customdata:.0%} busy",
    )

"""Who waits and who is waited for, and how much each rank sends to each other."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracelens.rendering.figures.base import axis, coded, layout, plain, stacked_bars, table
from tracelens.rendering.figures.figure import Figure, figure
from tracelens.table import Result, Table

_RANKS = 64
_MATRIX = 64


@figure("collectives")
def collectives(result: Result) -> list[Figure]:
    """Table `ranks` as bars of communication and waiting, and table `traffic` as a matrix."""
    per_rank = table(result, "ranks", "rank", "comm_ns", "sync_ns", "kernel_ns")
    if per_rank is None or not per_rank.array("kernel_ns").any():
        return []
    return [_waiting(per_rank), *_traffic(result)]


def _waiting(per_rank: Table) -> Figure:
    # With many ranks, those that wait least: they are the ones that the others wait for.
    order = np.argsort(per_rank.array("sync_ns"), kind="stable")[:_RANKS]
    rows = np.sort(order) if len(per_rank) <= _RANKS else order
    kernel = np.maximum(per_rank.array("kernel_ns")[rows], 1)
    parts = {
        name: per_rank.array(f"{key}_ns")[rows]
        for name, key in (("communication", "comm"), ("waiting", "sync"))
    }
    truncation = f" ({_RANKS} ranks that wait least)" if len(per_rank) > _RANKS else ""
    return stacked_bars(
        f"Communication kernels: moving data, and waiting for the last rank{truncation}",
        [f"rank {rank}" for rank in per_rank.array("rank")[rows].tolist()],
        {name: values.tolist() for name, values in parts.items()},
        {name: (values / kernel).tolist() for name, values in parts.items()},
    )


def _traffic(result: Result) -> list[Figure]:
    """A matrix of bytes for the process group that exchanges most."""
    traffic = table(result, "traffic", "group", "from_rank", "to_rank", "sent_bytes")
    if traffic is None:
        return []
    groups = coded(traffic, "group")
    sent = traffic.array("sent_bytes")
    group = int(np.argmax(np.bincount(groups.codes, weights=sent, minlength=len(groups.values))))
    rows = np.flatnonzero(groups.codes == group)
    ranks = np.unique(traffic.array("from_rank")[rows])[:_MATRIX]
    matrix = _matrix(traffic, rows, ranks)
    if not matrix.any():
        return []
    names = [str(rank) for rank in ranks.tolist()]
    drawn: dict[str, Any] = {
        "type": "heatmap",
        "x": names,
        "y": names,
        "z": (matrix / 2**20).round(3).tolist(),
        "colorscale": "Viridis",
        "colorbar": {"title": {"text": "MiB"}},
        "hovertemplate": "rank %{y} to rank %{x}: %{z:,.2f} MiB<extra></extra>",
    }
    title = f"Bytes from rank to rank in group {plain(groups.values[group], 30)}"
    if len(groups.values) > 1:
        title += f", the largest of {len(groups.values)}"
    side = 140 + 22 * len(names)
    return [
        {
            "data": [drawn],
            "layout": layout(
                title,
                min(max(side, 260), 700),
                xaxis=axis("to rank", type="category", showgrid=False),
                yaxis=axis("from rank", type="category", autorange="reversed", showgrid=False),
            ),
        }
    ]


def _matrix(traffic: Table, rows: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    sender, receiver = (traffic.array(name)[rows] for name in ("from_rank", "to_rank"))
    inside = np.isin(sender, ranks) & np.isin(receiver, ranks)
    matrix = np.zeros((len(ranks), len(ranks)))
    cells = (np.searchsorted(ranks, sender[inside]), np.searchsorted(ranks, receiver[inside]))
    np.add.at(matrix, cells, traffic.array("sent_bytes")[rows][inside])
    return matrix

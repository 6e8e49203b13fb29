"""Who waits and who is waited for, and how much each rank sends to each other."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracelens.rendering.figures.base import axis, chart, needs, plain, table
from tracelens.rendering.figures.colors import SEQUENTIAL
from tracelens.rendering.figures.figure import Figure, figure
from tracelens.rendering.figures.ranks import rank_times
from tracelens.table import Result, Table

_MATRIX = 64


@figure("collectives")
def collectives(result: Result) -> list[Figure]:
    """Table `ranks` as bars of communication and waiting, and table `traffic` as a matrix."""
    per_rank = table(result, "ranks", "rank", "comm_ns", "sync_ns", "kernel_ns")
    if per_rank is None or not per_rank.array("kernel_ns").any():
        return []
    known = (per_rank.array("sync_ns") >= 0).any()
    return [*([_waiting(per_rank)] if known else []), *_traffic(result)]


def _waiting(per_rank: Table) -> Figure:
    kernel_ns = per_rank.array("kernel_ns")
    waiting_ns = np.maximum(per_rank.array("sync_ns"), 0)  # -1 on ranks of which it is not known
    parts = {"communication": np.maximum(per_rank.array("comm_ns"), 0), "waiting": waiting_ns}
    share = waiting_ns.sum() / kernel_ns.sum()
    return rank_times(
        f"Communication kernels: {share:.0%} of their time is waiting for the last rank",
        per_rank.values("rank"),
        parts,
        {name: ns / np.maximum(kernel_ns, 1) for name, ns in parts.items()},
    )


@needs("traffic", "group", "from_rank", "to_rank", "sent_bytes")
def _traffic(traffic: Table) -> list[Figure]:
    """A matrix of bytes for the process group that exchanges most."""
    groups = traffic.coded("group")
    sent = np.bincount(groups.codes, weights=traffic.array("sent_bytes"), minlength=len(groups.values))
    group = int(np.argmax(sent))
    traffic = traffic.take(groups.codes == group)
    ranks = np.unique(traffic.array("from_rank"))[:_MATRIX].tolist()
    sent_bytes = traffic.pivot("from_rank", "to_rank", "sent_bytes", ranks).by_row()
    matrix = np.array([sent_bytes[rank] for rank in ranks])
    if not matrix.any():
        return []
    names = list(map(str, ranks))
    drawn: dict[str, Any] = {
        "type": "heatmap",
        "x": names,
        "y": names,
        "z": (matrix / 2**20).round(3).tolist(),
        "colorscale": SEQUENTIAL,
        "colorbar": {"title": {"text": "MiB"}},
        "hovertemplate": "rank %{y} to rank %{x}: %{z:,.2f} MiB<extra></extra>",
    }
    title = f"Bytes from rank to rank in group {plain(groups.values[group], 30)}"
    if len(groups.values) > 1:
        title += f", the largest of {len(groups.values)}"
    side = 140 + 22 * len(names)
    return [
        chart(
            [drawn],
            title,
            min(max(side, 260), 700),
            xaxis=axis("to rank", type="category", showgrid=False),
            yaxis=axis("from rank", type="category", autorange="reversed", showgrid=False),
        )
    ]

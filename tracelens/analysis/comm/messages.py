"""Messages: how much each rank sends to each other, and how time grows with size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracelens.analysis.comm.matching import MatchedCollective
from tracelens.arrays import Float
from tracelens.table import Column, Schema, Skip

ALL_TO_ALL = Schema(
    "All-to-alls",
    (
        Column("group", "category", doc="process group"),
        Column("order", "int64", "count", "position among the collectives of the group"),
        Column("bytes", "int64", "bytes", "sent by all ranks, including data that stays on its rank"),
        Column("wall_ns", "int64", "ns", "first start to last end"),
        Column("throughput_bytes_per_s", "float64", "bytes/s", "bytes / wall time"),
        Column("largest_rank", "int64", doc="rank that receives most"),
        Column("imbalance", "float64", "ratio", "largest / mean bytes received"),
    ),
    detail=True,
)

TRAFFIC = Schema(
    "Bytes from rank to rank",
    (
        Column("group", "category", doc="process group"),
        Column("from_rank", "int64", doc="rank that sends"),
        Column("to_rank", "int64", doc="rank that receives; the same for data that stays"),
        Column("count", "int64", "count", "all-to-alls"),
        Column("sent_bytes", "int64", "bytes", "by the sender's record"),
        Column("received_bytes", "int64", "bytes", "by the receiver's record"),
    ),
    doc="Sums over all all-to-alls with recorded split sizes.",
    detail=True,
)

FIT = Schema(
    "Latency and bandwidth",
    (
        Column("collective", "category", doc="as the trace names it; send/recv: a send with its receive"),
        Column("group", "category", doc="process group"),
        Column("collectives", "int64", "count", "collectives behind the fit"),
        Column("alpha_ns", "float64", "ns", "latency of an empty message"),
        Column("beta_bytes_per_s", "float64", "bytes/s", "asymptotic bandwidth"),
        Column("residual_ns", "float64", "ns", "RMS residual of the fit"),
    ),
    doc="Least-squares fit of latency = alpha + bytes / beta with alpha >= 0, per group and collective.",
)


def all_to_all(collectives: Sequence[MatchedCollective]) -> list[dict[str, Any]]:
    """Rows of ALL_TO_ALL: one per all-to-all, in order of time."""
    rows = []
    for collective in collectives:
        received = [max(participant.record.received, 0) for participant in collective.participants]
        if not collective.collective.startswith(("all_to_all", "alltoall")) or not sum(received):
            continue
        total = sum(max(participant.record.sent, 0) for participant in collective.participants)
        largest = int(np.argmax(received))
        rows.append(
            {
                "group": [collective.group],
                "order": [collective.order],
                "bytes": [total],
                "wall_ns": [collective.wall_ns],
                "throughput_bytes_per_s": [total / max(collective.wall_ns, 1) * 1e9],
                "largest_rank": [collective.participants[largest].rank],
                "imbalance": [max(received) * len(received) / sum(received)],
            }
        )
    return rows


def traffic(collectives: Sequence[MatchedCollective]) -> tuple[list[dict[str, Any]], list[Skip]]:
    """Rows of TRAFFIC, and a Skip where senders and receivers disagree."""
    sums: dict[tuple[str, int, int], list[int]] = {}
    wrong = 0
    for collective in collectives:
        matrix = traffic_matrices(collective)
        if matrix is None:
            continue
        ranks, sent, received = matrix
        wrong += int((sent != received).any())
        for row, sender in enumerate(ranks):
            for column, receiver in enumerate(ranks):
                cell = sums.setdefault((collective.group, sender, receiver), [0, 0, 0])
                cell[0] += 1
                cell[1] += int(sent[row, column])
                cell[2] += int(received[row, column])
    rows = [
        {
            "group": [group],
            "from_rank": [sender],
            "to_rank": [receiver],
            "count": [count],
            "sent_bytes": [sent_bytes],
            "received_bytes": [received_bytes],
        }
        for (group, sender, receiver), (count, sent_bytes, received_bytes) in sorted(sums.items())
    ]
    reason = "sent and received bytes disagree between the ranks"
    return rows, [Skip(f"traffic of {wrong} all-to-all(s)", reason)] if wrong else []


def traffic_matrices(collective: MatchedCollective) -> tuple[tuple[int, ...], np.ndarray, np.ndarray] | None:
    """(ranks, sent, received) of an all-to-all, both matrices from row to column; None if not recorded."""
    ranks = collective.participants[0].record.group_ranks
    records = {participant.rank: participant.record for participant in collective.participants}
    if not ranks or set(ranks) != set(records):
        return None
    sent = [records[rank].sent_to for rank in ranks]
    received = [records[rank].received_from for rank in ranks]
    if any(len(row) != len(ranks) for row in (*sent, *received)):
        return None
    return ranks, np.array(sent, dtype=np.int64), np.array(received, dtype=np.int64).T


def fit(collectives: Sequence[MatchedCollective]) -> tuple[list[dict[str, Any]], list[Skip]]:
    """Rows of FIT, and why a collective has none."""
    groups: dict[tuple[str, str], list[MatchedCollective]] = {}
    for collective in collectives:
        if collective.bytes > 0:
            groups.setdefault((collective.collective, collective.group), []).append(collective)
    rows, skips = [], []
    for (name, group), matched in groups.items():
        size = np.array([collective.bytes for collective in matched], dtype=float)
        time = np.array([collective.latency_ns for collective in matched], dtype=float)
        subject = f"latency and bandwidth of {name} in {group}"
        if len(np.unique(size)) < 2:
            skips.append(Skip(subject, "all its messages have the same size"))
            continue
        slope, alpha = _line(size, time)
        if slope <= 0:
            skips.append(Skip(subject, "its time does not grow with message size"))
            continue
        residual = time - (alpha + slope * size)
        rows.append(
            {
                "collective": [name],
                "group": [group],
                "collectives": [len(matched)],
                "alpha_ns": [alpha],
                "beta_bytes_per_s": [1e9 / slope],
                "residual_ns": [float(np.sqrt((residual**2).mean()))],
            }
        )
    return rows, skips


def _line(size: Float, time: Float) -> tuple[float, float]:
    """(Slope, value at 0) of the least squares line that is not below 0 at 0."""
    mean_size, mean_time = size.mean(), time.mean()
    apart = size - mean_size
    slope = float(apart @ (time - mean_time) / (apart @ apart))
    start = float(mean_time - slope * mean_size)
    return (slope, start) if start >= 0 else (float(size @ time / (size @ size)), 0.0)

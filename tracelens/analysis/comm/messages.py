"""Messages: how much each rank sends to each other, and how time grows with size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracelens.analysis.comm.matching import MatchedCollective
from tracelens.arrays import Float
from tracelens.table import Column, Schema, Skip

ALL_TO_ALL = Schema(
    "All-to-all exchanges",
    (
        Column("group", "category", doc="process group"),
        Column("order", "int64", "count", "position among the collectives of the group"),
        Column("bytes", "int64", "bytes", "sent by all ranks together, what stays on a rank included"),
        Column("wall_ns", "int64", "ns", "first start to last end"),
        Column("throughput_bytes_per_s", "float64", "bytes/s", "bytes / wall time"),
        Column("largest_rank", "int64", doc="who receives most"),
        Column("imbalance", "float64", "ratio", "largest / mean bytes received"),
    ),
    detail=True,
)

TRAFFIC = Schema(
    "Bytes from rank to rank",
    (
        Column("group", "category", doc="process group"),
        Column("from_rank", "int64"),
        Column("to_rank", "int64"),
        Column("count", "int64", "count", "exchanges"),
        Column("sent_bytes", "int64", "bytes", "by the sender's record"),
        Column("received_bytes", "int64", "bytes", "by the receiver's record"),
    ),
    doc="Sums over all exchanges whose split sizes were recorded.",
    detail=True,
)

FIT = Schema(
    "Latency and bandwidth",
    (
        Column("collective", "category"),
        Column("group", "category", doc="process group"),
        Column("instances", "int64", "count"),
        Column("alpha_ns", "float64", "ns", "time of a message without content"),
        Column("beta_bytes_per_s", "float64", "bytes/s", "what each further byte is moved at"),
        Column("residual_ns", "float64", "ns", "root mean square of what the fit leaves"),
    ),
    doc="Least squares of latency = alpha + bytes / beta, alpha not below 0, over a group's instances of a "
    "collective.",
)


def all_to_all(instances: Sequence[MatchedCollective]) -> list[dict[str, Any]]:
    """Rows of ALL_TO_ALL: one an exchange, in order of time."""
    rows = []
    for instance in instances:
        received = [max(member.record.received, 0) for member in instance.members]
        if not instance.collective.startswith(("all_to_all", "alltoall")) or not sum(received):
            continue
        total = sum(max(member.record.sent, 0) for member in instance.members)
        largest = int(np.argmax(received))
        rows.append(
            {
                "group": [instance.group],
                "order": [instance.order],
                "bytes": [total],
                "wall_ns": [instance.wall_ns],
                "throughput_bytes_per_s": [total / max(instance.wall_ns, 1) * 1e9],
                "largest_rank": [instance.members[largest].rank],
                "imbalance": [max(received) * len(received) / sum(received)],
            }
        )
    return rows


def traffic(instances: Sequence[MatchedCollective]) -> tuple[list[dict[str, Any]], list[Skip]]:
    """Rows of TRAFFIC, and a Skip where senders and receivers disagree."""
    sums: dict[tuple[str, int, int], list[int]] = {}
    wrong = 0
    for instance in instances:
        matrix = exchanged(instance)
        if matrix is None:
            continue
        ranks, sent, received = matrix
        wrong += int((sent != received).any())
        for row, sender in enumerate(ranks):
            for column, receiver in enumerate(ranks):
                cell = sums.setdefault((instance.group, sender, receiver), [0, 0, 0])
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
    reason = "what one rank says it sent is not what the other says it received"
    return rows, [Skip(f"traffic of {wrong} exchange(s)", reason)] if wrong else []


def exchanged(instance: MatchedCollective) -> tuple[tuple[int, ...], np.ndarray, np.ndarray] | None:
    """(ranks, sent, received) of an exchange, both matrices from row to column; None where not recorded."""
    ranks = instance.members[0].record.members
    there = {member.rank: member.record for member in instance.members}
    if not ranks or set(ranks) != set(there):
        return None
    sent = [there[rank].sent_to for rank in ranks]
    received = [there[rank].received_from for rank in ranks]
    if any(len(row) != len(ranks) for row in (*sent, *received)):
        return None
    return ranks, np.array(sent, dtype=np.int64), np.array(received, dtype=np.int64).T


def fit(instances: Sequence[MatchedCollective]) -> tuple[list[dict[str, Any]], list[Skip]]:
    """Rows of FIT, and why a collective has none."""
    groups: dict[tuple[str, str], list[MatchedCollective]] = {}
    for instance in instances:
        if instance.bytes > 0:
            groups.setdefault((instance.collective, instance.group), []).append(instance)
    rows, skips = [], []
    for (collective, group), some in groups.items():
        size = np.array([instance.bytes for instance in some], dtype=float)
        time = np.array([instance.latency_ns for instance in some], dtype=float)
        subject = f"latency and bandwidth of {collective} in group {group}"
        if len(np.unique(size)) < 2:
            skips.append(Skip(subject, "all its messages have one size"))
            continue
        slope, alpha = _line(size, time)
        if slope <= 0:
            skips.append(Skip(subject, "its time does not grow with the size of the message"))
            continue
        left = time - (alpha + slope * size)
        rows.append(
            {
                "collective": [collective],
                "group": [group],
                "instances": [len(some)],
                "alpha_ns": [alpha],
                "beta_bytes_per_s": [1e9 / slope],
                "residual_ns": [float(np.sqrt((left**2).mean()))],
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

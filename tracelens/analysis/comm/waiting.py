"""Communication time of each rank, split at the arrival of the last one."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

from tracelens.analysis.comm.matching import SEND_RECV, MatchedCollective
from tracelens.analysis.comm.records import RankCommunication
from tracelens.table import RANK, Column, Schema

RANKS = Schema(
    "Communication of each rank",
    (
        RANK,
        Column("kernel_ns", "int64", "ns", "time of all communication kernels = comm + sync"),
        Column("comm_ns", "int64", "ns", "part transferring"),
        Column(
            "sync_ns", "int64", "ns", "part waiting for ranks that arrived later; -1: no collective matched"
        ),
        Column("sync_fraction", "float64", "fraction", "sync / kernel"),
        Column("exposed_ns", "int64", "ns", "exposed: the GPU computes nothing at that time"),
        Column("unmatched_ns", "int64", "ns", "part of comm: kernels without a matched collective"),
        Column("kernels", "int64", "count", "communication kernels"),
        Column("last_count", "int64", "count", "collectives at which this rank arrived last"),
        Column("caused_wait_ns", "int64", "ns", "waiting of all other ranks while this one was last"),
    ),
    doc="A kernel waits until the last rank of its collective arrives, then transfers data.",
)

SUMMARY = Schema(
    "By group, collective and size",
    (
        Column("collective", "category", doc="as the trace names it; send/recv: a send with its receive"),
        Column("group", "category", doc="process group"),
        Column(
            "from_bytes",
            "int64",
            "bytes",
            "message sizes from this up to twice as much; -1: not recorded",
        ),
        Column("count", "int64", "count", "collectives"),
        Column("kernel_ns", "int64", "ns", "time of the kernels of all ranks = comm + sync"),
        Column("comm_ns", "int64", "ns", "part transferring"),
        Column("sync_ns", "int64", "ns", "part waiting for ranks that arrived later"),
        Column("latency_median_ns", "float64", "ns", "median duration on the last rank to arrive"),
        Column("start_skew_median_ns", "float64", "ns", "median of last start - first start"),
        Column("end_skew_median_ns", "float64", "ns", "median of last end - first end"),
        Column("algbw_bytes_per_s", "float64", "bytes/s", "total bytes / total latency"),
        Column("busbw_bytes_per_s", "float64", "bytes/s", "algbw x share of the data that crosses links"),
        Column("group_size", "int64", "count", "ranks in the process group"),
        Column("description", "category", doc="the program's name for the group"),
    ),
    doc="By power-of-two message size, without waiting: latency is that of the last rank to arrive. "
    "Kernels that serve several sends and receives count once for each.",
)


class Waits(NamedTuple):
    """What was waited for.

    Attributes:
        sync: by rank and kernel, ns until the last rank of its collectives has arrived, at most its duration.
        matched: the same keys as set: kernels that have a collective with other ranks.
        last: rank to number of collectives at which it arrived last.
        caused: rank to what the others waited for it there, ns.
    """

    sync: dict[tuple[int, int], int]
    matched: frozenset[tuple[int, int]]
    last: dict[int, int]
    caused: dict[int, int]


def waits(collectives: Sequence[MatchedCollective]) -> Waits:
    """The waiting of all kernels, from collectives by one clock.

    A kernel of several sends and receives waits until the last of all its partners is there.
    """
    sync: dict[tuple[int, int], int] = {}
    last: dict[int, int] = {}
    caused: dict[int, int] = {}
    for collective in collectives:
        latest, wait = collective.last.rank, collective.wait_ns
        last[latest] = last.get(latest, 0) + 1
        caused[latest] = caused.get(latest, 0) + sum(wait.values())
        for participant in collective.participants:
            key = (participant.rank, participant.record.kernel)
            sync[key] = max(sync.get(key, 0), wait[participant.rank])
    return Waits(sync, frozenset(sync), last, caused)


def rank_rows(ranks: Sequence[RankCommunication], waiting: Waits) -> list[dict[str, Any]]:
    """Rows of RANKS: one a rank with communication."""
    rows = []
    for rank in sorted(ranks, key=lambda rank: rank.rank):
        if not len(rank.start):
            continue
        dur = (rank.end - rank.start).tolist()
        kernel = sum(dur)
        sync = sum(waiting.sync.get((rank.rank, kernel_index), 0) for kernel_index in range(len(dur)))
        unmatched = sum(
            ns for kernel_index, ns in enumerate(dur) if (rank.rank, kernel_index) not in waiting.matched
        )
        matched = any((rank.rank, kernel_index) in waiting.matched for kernel_index in range(len(dur)))
        rows.append(
            {
                "rank": [rank.rank],
                "kernel_ns": [kernel],
                "comm_ns": [kernel - sync],
                "sync_ns": [sync if matched else -1],
                "sync_fraction": [sync / max(kernel, 1) if matched else -1.0],
                "exposed_ns": [rank.exposed_ns],
                "unmatched_ns": [unmatched],
                "kernels": [len(dur)],
                "last_count": [waiting.last.get(rank.rank, 0) if matched else -1],
                "caused_wait_ns": [waiting.caused.get(rank.rank, 0) if matched else -1],
            }
        )
    return rows


def summary_rows(collectives: Sequence[MatchedCollective]) -> list[dict[str, Any]]:
    """Rows of SUMMARY, most kernel time first."""
    groups: dict[tuple[str, str, int], list[MatchedCollective]] = {}
    for collective in collectives:
        bucket = 1 << max(collective.bytes, 1).bit_length() - 1 if collective.bytes >= 0 else -1
        groups.setdefault((collective.collective, collective.group, bucket), []).append(collective)
    rows = [_summary(key, bucketed) for key, bucketed in groups.items()]
    return sorted(rows, key=lambda row: -row["kernel_ns"][0])


def _summary(key: tuple[str, str, int], collectives: list[MatchedCollective]) -> dict[str, Any]:
    collective, group, bucket = key
    record = collectives[0].participants[0].record
    kernel = sum(
        participant.end - participant.start for matched in collectives for participant in matched.participants
    )
    sync = sum(sum(matched.wait_ns.values()) for matched in collectives)
    latency = sum(matched.latency_ns for matched in collectives)
    rate = sum(matched.bytes for matched in collectives) / max(latency, 1) * 1e9 if bucket >= 0 else -1.0
    return {
        "collective": [collective],
        "group": [group],
        "description": [record.description],
        "group_size": [record.size],
        "from_bytes": [bucket],
        "count": [len(collectives)],
        "kernel_ns": [kernel],
        "comm_ns": [kernel - sync],
        "sync_ns": [sync],
        "latency_median_ns": [float(median(matched.latency_ns for matched in collectives))],
        "start_skew_median_ns": [float(median(matched.start_skew_ns for matched in collectives))],
        "end_skew_median_ns": [float(median(matched.end_skew_ns for matched in collectives))],
        "algbw_bytes_per_s": [rate],
        "busbw_bytes_per_s": [rate * bus_factor(collective, record.size) if rate >= 0 else -1.0],
    }


def bus_factor(collective: str, ranks: int) -> float:
    """Bus bandwidth / algorithm bandwidth, by the conventions of nccl-tests (doc/PERFORMANCE.md)."""
    if ranks < 2:
        return 1.0
    if collective.startswith(("allreduce", "all_reduce")):
        return 2 * (ranks - 1) / ranks
    one_to_one = ("broadcast", "reduce", "_reduce_oop", "send", "recv", SEND_RECV, "gather", "scatter")
    return 1.0 if collective in one_to_one else (ranks - 1) / ranks

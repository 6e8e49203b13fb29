"""Communication time of each rank, split at the arrival of the last one."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

from tracelens.analysis.comm.matching import SEND_RECV, MatchedCollective
from tracelens.analysis.comm.records import RankComms
from tracelens.table import Column, Schema

RANKS = Schema(
    "Communication of each rank",
    (
        Column("rank", "int64"),
        Column("kernel_ns", "int64", "ns", "time of all communication kernels = comm + sync"),
        Column("comm_ns", "int64", "ns", "of it, moving data"),
        Column("sync_ns", "int64", "ns", "of it, waiting for ranks that arrived later"),
        Column("sync_fraction", "float64", "fraction", "sync / kernel"),
        Column("exposed_ns", "int64", "ns", "communication beside which the GPU computes nothing"),
        Column("unmatched_ns", "int64", "ns", "of comm, of kernels whose other ranks are not known"),
        Column("kernels", "int64", "count"),
        Column("last_count", "int64", "count", "collectives at which this rank arrived last"),
        Column("caused_wait_ns", "int64", "ns", "what all others waited for it, being last"),
    ),
    doc="A kernel waits until the last rank of its collective has arrived; the rest of it moves data.",
)

SUMMARY = Schema(
    "By group, collective and size",
    (
        Column("collective", "category"),
        Column("group", "category", doc="process group"),
        Column(
            "from_bytes",
            "int64",
            "bytes",
            "messages of at least this, and less than twice as much; -1: size not recorded",
        ),
        Column("count", "int64", "count"),
        Column("kernel_ns", "int64", "ns", "of all ranks"),
        Column("comm_ns", "int64", "ns"),
        Column("sync_ns", "int64", "ns"),
        Column("latency_median_ns", "float64", "ns"),
        Column("start_skew_median_ns", "float64", "ns"),
        Column("end_skew_median_ns", "float64", "ns"),
        Column("algbw_bytes_per_s", "float64", "bytes/s", "all bytes / all latencies"),
        Column("busbw_bytes_per_s", "float64", "bytes/s"),
        Column("group_size", "int64", "count"),
        Column("description", "category", doc="what the program calls the group"),
    ),
    doc="Sizes in powers of two, with the waiting removed: latency is that of the last rank to arrive. "
    "Kernels that serve several sends and receives count with each of them.",
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


def waits(instances: Sequence[MatchedCollective]) -> Waits:
    """The waiting of all kernels, from instances by one clock.

    A kernel of several sends and receives waits until the last of all its partners is there.
    """
    sync: dict[tuple[int, int], int] = {}
    last: dict[int, int] = {}
    caused: dict[int, int] = {}
    for instance in instances:
        latest, wait = instance.last.rank, instance.wait_ns
        last[latest] = last.get(latest, 0) + 1
        caused[latest] = caused.get(latest, 0) + sum(wait.values())
        for member in instance.members:
            key = (member.rank, member.record.kernel)
            sync[key] = max(sync.get(key, 0), wait[member.rank])
    return Waits(sync, frozenset(sync), last, caused)


def rank_rows(ranks: Sequence[RankComms], found: Waits) -> list[dict[str, Any]]:
    """Rows of RANKS: one a rank with communication."""
    rows = []
    for one in sorted(ranks, key=lambda one: one.rank):
        if not len(one.start):
            continue
        dur = (one.end - one.start).tolist()
        kernel = sum(dur)
        sync = sum(found.sync.get((one.rank, place), 0) for place in range(len(dur)))
        loose = sum(ns for place, ns in enumerate(dur) if (one.rank, place) not in found.matched)
        rows.append(
            {
                "rank": [one.rank],
                "kernel_ns": [kernel],
                "comm_ns": [kernel - sync],
                "sync_ns": [sync],
                "sync_fraction": [sync / max(kernel, 1)],
                "exposed_ns": [one.exposed_ns],
                "unmatched_ns": [loose],
                "kernels": [len(dur)],
                "last_count": [found.last.get(one.rank, 0)],
                "caused_wait_ns": [found.caused.get(one.rank, 0)],
            }
        )
    return rows


def summary_rows(instances: Sequence[MatchedCollective]) -> list[dict[str, Any]]:
    """Rows of SUMMARY, most kernel time first."""
    groups: dict[tuple[str, str, int], list[MatchedCollective]] = {}
    for instance in instances:
        bucket = 1 << max(instance.bytes, 1).bit_length() - 1 if instance.bytes >= 0 else -1
        groups.setdefault((instance.collective, instance.group, bucket), []).append(instance)
    rows = [_summary(key, some) for key, some in groups.items()]
    return sorted(rows, key=lambda row: -row["kernel_ns"][0])


def _summary(key: tuple[str, str, int], some: list[MatchedCollective]) -> dict[str, Any]:
    collective, group, bucket = key
    record = some[0].members[0].record
    kernel = sum(member.end - member.start for instance in some for member in instance.members)
    sync = sum(sum(instance.wait_ns.values()) for instance in some)
    latency = sum(instance.latency_ns for instance in some)
    rate = sum(instance.bytes for instance in some) / max(latency, 1) * 1e9 if bucket >= 0 else -1.0
    return {
        "collective": [collective],
        "group": [group],
        "description": [record.description],
        "group_size": [record.size],
        "from_bytes": [bucket],
        "count": [len(some)],
        "kernel_ns": [kernel],
        "comm_ns": [kernel - sync],
        "sync_ns": [sync],
        "latency_median_ns": [float(median(instance.latency_ns for instance in some))],
        "start_skew_median_ns": [float(median(instance.start_skew_ns for instance in some))],
        "end_skew_median_ns": [float(median(instance.end_skew_ns for instance in some))],
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

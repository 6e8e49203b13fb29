"""Each rank's share of each collective, and the waiting beside which a rank does nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tracelens.analysis.comm.matching import MatchedCollective, Participant
from tracelens.analysis.comm.records import RankComms
from tracelens.table import Column, Schema

MEMBERS = Schema(
    "Collectives by rank",
    (
        Column("rank", "int64"),
        Column("host", "category", doc="of the rank, '' where the trace does not say"),
        Column("collective", "category"),
        Column("group", "category", doc="process group"),
        Column("first_rank", "int64", doc="lowest of the group in the run; tells groups of one name apart"),
        Column("order", "int64", "count", "position among the collectives of the group"),
        Column("step", "category"),
        Column("kernel", "category"),
        Column("bytes", "int64", "bytes", "largest message of a rank, as for `instances`; -1 unknown"),
        Column("group_size", "int64", "count"),
        Column("own_ts_ns", "int64", "ns", "start of the kernel, by the clock of the rank's own trace"),
        Column("ts_ns", "int64", "ns", "the same by the clock of the first rank"),
        Column("dur_ns", "int64", "ns"),
        Column("wait_ns", "int64", "ns", "of it, until the last rank had arrived"),
        Column("exposed_ns", "int64", "ns", "of the rest, beside which the GPU computes nothing"),
    ),
    detail=True,
)


class _Share(NamedTuple):
    """One rank's share of a collective: lowest rank, bytes and the rank's own waiting."""

    instance: MatchedCollective
    member: Participant
    first: int
    size: int
    wait: int


def member_rows(ranks: Sequence[RankComms], instances: Sequence[MatchedCollective]) -> list[dict[str, Any]]:
    """Rows of MEMBERS, by rank.

    Args:
        ranks: of the run.
        instances: by the clock of the first rank.
    """
    of_rank: dict[int, list[_Share]] = {one.rank: [] for one in ranks}
    for instance in instances:
        wait, size = instance.wait_ns, instance.bytes
        first = min(wait)
        for member in instance.members:
            of_rank[member.rank].append(_Share(instance, member, first, size, wait[member.rank]))
    rows = []
    for one in sorted(ranks, key=lambda one: one.rank):
        mine = of_rank[one.rank]
        kernel = np.array([share.member.record.kernel for share in mine], dtype=np.int64)
        waited = np.array([share.wait for share in mine], dtype=np.int64)
        start, end = one.start[kernel], one.end[kernel]
        rows.append(
            {
                "rank": [one.rank] * len(mine),
                "host": [one.host] * len(mine),
                "collective": [share.instance.collective for share in mine],
                "group": [share.instance.group for share in mine],
                "first_rank": [share.first for share in mine],
                "order": [share.instance.order for share in mine],
                "step": [share.member.record.step for share in mine],
                "kernel": [one.kernels[place] for place in kernel.tolist()],
                "bytes": [share.size for share in mine],
                "group_size": [share.member.record.size for share in mine],
                "own_ts_ns": start,
                "ts_ns": np.array([share.member.start for share in mine], dtype=np.int64),
                "dur_ns": end - start,
                "wait_ns": waited,
                "exposed_ns": one.alone.covered(start + waited, end),
            }
        )
    return rows

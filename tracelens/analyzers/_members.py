"""Each rank's share of each collective, and the waiting beside which a rank does nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tracelens.analyzers._causes import Verdict
from tracelens.analyzers._comms import RankComms
from tracelens.analyzers._instances import Instance, Member
from tracelens.schema import Column, Schema
from tracelens.trace.intervals import cut, difference, exclusive, union

Int = NDArray[np.int64]

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

LOST = Schema(
    "Waiting beside which a GPU does nothing else",
    (
        Column("rank", "int64", doc="that waits"),
        Column("late_rank", "int64", doc="that it waits for"),
        Column("cause", "category"),
        Column("collective", "category"),
        Column("step", "category"),
        Column("own_ts_ns", "int64", "ns", "by the clock of the rank's own trace"),
        Column("dur_ns", "int64", "ns"),
    ),
    doc="Pieces of one rank do not overlap. Where a GPU computes or moves data meanwhile, nothing is lost.",
    detail=True,
)


class _Share(NamedTuple):
    """One rank's share of a collective: lowest rank, bytes and the rank's own waiting."""

    instance: Instance
    member: Member
    first: int
    size: int
    wait: int


def member_rows(ranks: Sequence[RankComms], instances: Sequence[Instance]) -> list[dict[str, Any]]:
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


def lost_rows(
    ranks: Sequence[RankComms], instances: Sequence[Instance], verdicts: Sequence[Verdict]
) -> list[dict[str, Any]]:
    """Rows of LOST, by rank.

    Args:
        ranks: of the run.
        instances: by one clock.
        verdicts: why the last rank of each was late.
    """
    sync: dict[int, dict[int, int]] = {one.rank: {} for one in ranks}
    longest: dict[int, dict[int, tuple[int, int, str]]] = {one.rank: {} for one in ranks}
    for place, instance in enumerate(instances):
        wait = instance.wait_ns
        for member in instance.members:
            rank, kernel, ns = member.rank, member.record.kernel, wait[member.rank]
            # A kernel of several sends and receives waits until the last of all its partners is there.
            sync[rank][kernel] = max(sync[rank].get(kernel, 0), ns)
            if ns > longest[rank].get(kernel, (0, 0, ""))[0]:
                longest[rank][kernel] = ns, place, member.record.step
    rows = []
    for one in sorted(ranks, key=lambda one: one.rank):
        mine = longest[one.rank]
        kernels = sorted(mine)
        row, start, end = _lost(one, np.array(kernels, dtype=np.int64), sync[one.rank])
        some = [mine[kernels[at]] for at in row.tolist()]
        rows.append(
            {
                "rank": [one.rank] * len(row),
                "late_rank": [verdicts[place].rank for _, place, _ in some],
                "cause": [verdicts[place].cause for _, place, _ in some],
                "collective": [instances[place].collective for _, place, _ in some],
                "step": [step for _, _, step in some],
                "own_ts_ns": start,
                "dur_ns": end - start,
            }
        )
    return rows


def _lost(one: RankComms, kernels: Int, sync: Mapping[int, int]) -> tuple[Int, Int, Int]:
    """(place among the kernels, start, end) of the waiting in these kernels that nothing hides.

    Args:
        one: the rank.
        kernels: that wait.
        sync: what each of its kernels waits; those without an entry move data all the time.
    """
    every = np.array([sync.get(kernel, 0) for kernel in range(len(one.start))], dtype=np.int64)
    moving = union(one.start + every, one.end)
    start, end = one.start[kernels], one.start[kernels] + every[kernels]
    # Of kernels that wait at once, the one that began first counts.
    start = exclusive(start, end, np.zeros(len(start), dtype=np.int64))
    return cut(start, end, difference(one.alone, moving))

"""Waiting for other ranks beside which a GPU does nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tracelens.analysis.comm import MatchedCollective, RankComms
from tracelens.analysis.stragglers.causes import Verdict
from tracelens.arrays import Int
from tracelens.table import Column, Schema
from tracelens.trace import cut, difference, exclusive, union

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


def lost_rows(
    ranks: Sequence[RankComms], instances: Sequence[MatchedCollective], verdicts: Sequence[Verdict]
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

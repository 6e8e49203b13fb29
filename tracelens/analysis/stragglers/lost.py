"""Exposed waiting for other ranks: the GPU does nothing else meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tracelens.analysis.comm import AlignedRun, RankCommunication
from tracelens.analysis.stragglers.verdict import Verdict
from tracelens.arrays import Int
from tracelens.table import STEP, Column, Schema
from tracelens.trace import cut, difference, exclusive, union

LOST = Schema(
    "Exposed waiting for late ranks",
    (
        Column("rank", "int64", doc="waiting rank"),
        Column("late_rank", "int64", doc="rank that it waits for"),
        Column("cause", "category", doc="why that rank is late, as in `causes`"),
        Column("collective", "category", doc="collective in which it waits"),
        STEP,
        Column("local_ts_ns", "int64", "ns", "by the clock of the rank's own trace"),
        Column("dur_ns", "int64", "ns", "length of the piece"),
    ),
    doc="Pieces on one rank do not overlap. Waiting hidden by computation or transfers is left out.",
    detail=True,
    key=(),
)


def lost_rows(aligned: AlignedRun, verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """Rows of LOST, by rank.

    Args:
        aligned: the run.
        verdicts: why the last rank of each collective was late.
    """
    ranks, collectives = aligned.ranks, aligned.collectives
    sync: dict[int, dict[int, int]] = {rank_comm.rank: {} for rank_comm in ranks}
    longest: dict[int, dict[int, tuple[int, int, str]]] = {rank_comm.rank: {} for rank_comm in ranks}
    for index, collective in enumerate(collectives):
        wait = collective.wait_ns
        for participant in collective.participants:
            rank, kernel, ns = participant.rank, participant.record.kernel, wait[participant.rank]
            # A kernel of several sends and receives waits until the last of all its partners is there.
            sync[rank][kernel] = max(sync[rank].get(kernel, 0), ns)
            if ns > longest[rank].get(kernel, (0, 0, ""))[0]:
                longest[rank][kernel] = ns, index, participant.record.step
    rows = []
    for rank_comm in sorted(ranks, key=lambda rank_comm: rank_comm.rank):
        waiting_kernels = longest[rank_comm.rank]
        kernels = sorted(waiting_kernels)
        row, start, end = _lost(rank_comm, np.array(kernels, dtype=np.int64), sync[rank_comm.rank])
        waits = [waiting_kernels[kernels[position]] for position in row.tolist()]
        rows.append(
            {
                "rank": [rank_comm.rank] * len(row),
                "late_rank": [verdicts[index].rank for _, index, _ in waits],
                "cause": [verdicts[index].cause for _, index, _ in waits],
                "collective": [collectives[index].collective for _, index, _ in waits],
                "step": [step for _, _, step in waits],
                "local_ts_ns": start,
                "dur_ns": end - start,
            }
        )
    return rows


def _lost(rank_comm: RankCommunication, kernels: Int, sync: Mapping[int, int]) -> tuple[Int, Int, Int]:
    """(place among the kernels, start, end) of the waiting in these kernels that nothing hides.

    Args:
        rank_comm: the rank.
        kernels: that wait.
        sync: what each of its kernels waits; those without an entry move data all the time.
    """
    wait_ns = np.array([sync.get(kernel, 0) for kernel in range(len(rank_comm.start))], dtype=np.int64)
    moving = union(rank_comm.start + wait_ns, rank_comm.end)
    start, end = rank_comm.start[kernels], rank_comm.start[kernels] + wait_ns[kernels]
    # Of kernels that wait at once, the one that began first counts.
    start = exclusive(start, end, np.zeros(len(start), dtype=np.int64))
    return cut(start, end, difference(rank_comm.alone, moving))

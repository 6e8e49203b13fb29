"""Collectives, and sends with their receives, as meetings of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tracelens.analysis.comm import AlignedRun, MatchedCollective
from tracelens.arrays import Bool, Int
from tracelens.trace import rows_by_code
from tracelens.what_if.graph.graph import Draft, Edge, Node
from tracelens.what_if.graph.rank_part import RankPart


class RunCollectives(NamedTuple):
    """The communication of a run.

    Attributes:
        aligned: the collectives matched across its ranks, by one clock.
        work: position in its trace's `work` of each communication kernel of each rank.
        kernels: rank to its kernels of these collectives, positions in `work`.
    """

    aligned: AlignedRun
    work: list[Int]
    kernels: dict[int, list[int]]

    @property
    def matched(self) -> Sequence[MatchedCollective]:
        return self.aligned.collectives

    @property
    def shift(self) -> list[int]:
        """What is added to the times of each trace to get those by the common clock."""
        return [self.aligned.shift[rank.rank] for rank in self.aligned.ranks]

    def shared(self, rank: int, index: int, count: int) -> Bool:
        """Which of the `count` pieces of work of a rank (at place `at`) belong to a matched collective."""
        is_shared = np.zeros(count, dtype=bool)
        is_shared[self.work[index][self.kernels.get(rank, [])]] = True
        return is_shared


def run_collectives(parts: Sequence[RankPart], aligned: AlignedRun) -> RunCollectives:
    """The collectives of a run, matched across its ranks."""
    kernels: dict[int, list[int]] = {}
    for collective in aligned.collectives:
        for participant in collective.participants:
            kernels.setdefault(participant.rank, []).append(participant.record.kernel)
    work = [np.flatnonzero(part.rank.is_comm) for part in parts]
    return RunCollectives(aligned, work, kernels)


def meet(
    parts: Sequence[RankPart], collectives: RunCollectives, number_of: Sequence[Int], draft: Draft
) -> None:
    """Add the meetings to the graph; `number_of` is the number in it of each node of each part.

    The ranks have met when the last of their kernels has started. The transfer lasts from then to the first
    end of a kernel. A rank whose kernel ends before all have arrived needs not all of them (the root of a
    broadcast, a small message that is sent without waiting): it takes its own time.
    """
    index_of = {part.rank.number: index for index, part in enumerate(parts)}
    participants = [
        (number, index_of[member.rank], int(collectives.work[index_of[member.rank]][member.record.kernel]))
        for number, collective in enumerate(collectives.matched)
        for member in collective.participants
    ]
    if not participants:
        return
    number, rank, work = (np.array(column, dtype=np.int64) for column in zip(*participants, strict=True))
    begin, finish, start, end = (np.empty(len(number), dtype=np.int64) for _ in range(4))
    for index, rows in rows_by_code(rank).items():
        part = parts[index]
        begin[rows] = number_of[index][part.begin[work[rows]]]
        finish[rows] = number_of[index][part.finish[work[rows]]]
        for column, times in ((start, part.work_start), (end, part.work_end)):
            column[rows] = times[work[rows]] + collectives.shift[index]
    count = len(collectives.matched)
    met = np.full(count, np.iinfo(np.int64).min)
    np.maximum.at(met, number, start)
    done = np.full(count, np.iinfo(np.int64).max)
    waited = end >= met[number]
    np.minimum.at(done, number[waited], end[waited])
    lowest = np.full(count, len(parts))
    np.minimum.at(lowest, number, rank)
    node = np.empty(count, dtype=np.int64)
    for index, rows in rows_by_code(lowest).items():
        node[rows] = draft.add(Node.MEET, met[rows], rank=index, dur=done[rows] - met[rows], collective=rows)
    draft.join(Edge.ARRIVAL, begin, node[number])
    draft.join(Edge.TRANSFER, node[number[waited]], finish[waited], end[waited] - done[number[waited]])
    # A kernel may serve several meetings; where one of them holds it up, its own time is part of that.
    held = np.isin(finish, finish[waited])
    draft.join(Edge.OWN, begin, finish, np.where(held, 0, end - start))

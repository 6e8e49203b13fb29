"""Collectives, and sends with their receives, as meetings of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tracelens.analysis.comm import AlignedRun, MatchedCollective, align_run
from tracelens.arrays import Bool, Int
from tracelens.trace import WORK_KINDS, Run, rows_by_code
from tracelens.what_if.graph.device import Device
from tracelens.what_if.graph.graph import Draft, Edge, Node


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

    def shared(self, rank: int, at: int, count: int) -> Bool:
        """Which of the `count` pieces of work of a rank (at place `at`) belong to a matched collective."""
        is_shared = np.zeros(count, dtype=bool)
        is_shared[self.work[at][self.kernels.get(rank, [])]] = True
        return is_shared


def run_collectives(run: Run) -> RunCollectives:
    """The collectives of a run, matched across its ranks."""
    aligned = align_run(run)
    comm = WORK_KINDS.index("comm")
    kernels: dict[int, list[int]] = {}
    for collective in aligned.collectives:
        for participant in collective.participants:
            kernels.setdefault(participant.rank, []).append(participant.record.kernel)
    work = [np.flatnonzero(trace.work.kind == comm) for trace in run.traces]
    return RunCollectives(aligned, work, kernels)


def meet(run: Run, collectives: RunCollectives, devices: Sequence[Device], draft: Draft) -> None:
    """Add the meetings to the graph.

    The ranks have met when the last of their kernels has started. The transfer lasts from then to the first
    end of a kernel. A rank whose kernel ends before all have arrived needs not all of them (the root of a
    broadcast, a small message that is sent without waiting): it takes its own time.
    """
    index_of = {trace.meta.rank: index for index, trace in enumerate(run.traces)}
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
        device, activities = devices[index], run.traces[index].work
        begin[rows], finish[rows] = device.begin[work[rows]], device.finish[work[rows]]
        for column, times in ((start, activities.start), (end, activities.end)):
            column[rows] = times[work[rows]] + collectives.shift[index]
    count = len(collectives.matched)
    met = np.full(count, np.iinfo(np.int64).min)
    np.maximum.at(met, number, start)
    done = np.full(count, np.iinfo(np.int64).max)
    waited = end >= met[number]
    np.minimum.at(done, number[waited], end[waited])
    lowest = np.full(count, len(run.traces))
    np.minimum.at(lowest, number, rank)
    node = np.empty(count, dtype=np.int64)
    for index, rows in rows_by_code(lowest).items():
        node[rows] = draft.add(Node.MEET, index, met[rows], dur=done[rows] - met[rows], collective=rows)
    draft.join(Edge.ARRIVAL, begin, node[number])
    draft.join(Edge.TRANSFER, node[number[waited]], finish[waited], end[waited] - done[number[waited]])
    # A kernel may serve several meetings; where one of them holds it up, its own time is part of that.
    held = np.isin(finish, finish[waited])
    draft.join(Edge.OWN, begin, finish, np.where(held, 0, end - start))

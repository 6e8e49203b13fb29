"""Collectives, and sends with their receives, as meetings of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tracelens.analysis.comm import AlignedRun, MatchedCollective, align_run
from tracelens.arrays import Bool, Int
from tracelens.trace import WORK_KINDS, Run, rows_by_code
from tracelens.what_if.graph.device import Device
from tracelens.what_if.graph.graph import ARRIVAL, MEET, OWN, TRANSFER, Draft


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


def meet(run: Run, found: RunCollectives, devices: Sequence[Device], draft: Draft) -> None:
    """Add the meetings to the graph.

    All ranks are there when the last of their kernels has started. The transfer lasts from then to the first
    end of a kernel. A rank whose kernel ends before all are there needed not all of them (the root of a
    broadcast, a small message that is sent without waiting): it takes its own time.
    """
    place = {trace.meta.rank: at for at, trace in enumerate(run.traces)}
    members = [
        (number, place[member.rank], int(found.work[place[member.rank]][member.record.kernel]))
        for number, instance in enumerate(found.matched)
        for member in instance.participants
    ]
    if not members:
        return
    number, rank, work = (np.array(column, dtype=np.int64) for column in zip(*members, strict=True))
    begin, finish, start, end = (np.empty(len(number), dtype=np.int64) for _ in range(4))
    for at, mine in rows_by_code(rank).items():
        one, own = devices[at], run.traces[at].work
        begin[mine], finish[mine] = one.begin[work[mine]], one.finish[work[mine]]
        start[mine], end[mine] = (times[work[mine]] + found.shift[at] for times in (own.start, own.end))
    count = len(found.matched)
    there = np.full(count, np.iinfo(np.int64).min)
    np.maximum.at(there, number, start)
    done = np.full(count, np.iinfo(np.int64).max)
    late = end >= there[number]
    np.minimum.at(done, number[late], end[late])
    lowest = np.full(count, len(run.traces))
    np.minimum.at(lowest, number, rank)
    node = np.empty(count, dtype=np.int64)
    for at, mine in rows_by_code(lowest).items():
        node[mine] = draft.add(MEET, at, there[mine], dur=done[mine] - there[mine], collective=mine)
    draft.join(ARRIVAL, begin, node[number])
    draft.join(TRANSFER, node[number[late]], finish[late], end[late] - done[number[late]])
    # A kernel may serve several meetings; where one of them holds it up, its own time is part of that.
    held = np.isin(finish, finish[late])
    draft.join(OWN, begin, finish, np.where(held, 0, end - start))

"""Collectives, and sends with their receives, as meetings of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tracelens.analysis.comm import (
    MatchedCollective,
    RankCommunication,
    base_ns,
    clocks,
    match,
    rank_communication,
)
from tracelens.arrays import Bool, Int
from tracelens.table import Skip
from tracelens.trace import WORK_KINDS, Run, rows_by_code
from tracelens.what_if.graph.device import Device
from tracelens.what_if.graph.graph import ARRIVAL, MEET, OWN, TRANSFER, Draft


class RunCollectives(NamedTuple):
    """The communication of a run.

    Attributes:
        matched: collectives that several ranks recorded; times by the first rank's base.
        work: position in its trace's `work` of each communication kernel of each rank.
        kernels: rank to its kernels of these collectives, places in `work`.
        shift: added to the times of each trace to get those by the clock of the first.
        skips: what could not be matched.
    """

    matched: list[MatchedCollective]
    work: list[Int]
    kernels: dict[int, list[int]]
    shift: list[int]
    skips: list[Skip]

    def shared(self, rank: int, at: int, count: int) -> Bool:
        """Which of the `count` pieces of work of a rank (at place `at`) belong to a matched collective."""
        found = np.zeros(count, dtype=bool)
        found[self.work[at][self.kernels.get(rank, [])]] = True
        return found


def run_collectives(run: Run) -> RunCollectives:
    """The collectives of a run, matched across its ranks."""
    ranks: list[RankCommunication] = [rank_communication(trace) for trace in run.traces]
    found = match(ranks)
    clock = {one.rank: one.offset_ns for one in clocks(ranks, found.collectives)}
    comm = WORK_KINDS.index("comm")
    kernels: dict[int, list[int]] = {}
    for instance in found.collectives:
        for member in instance.participants:
            kernels.setdefault(member.rank, []).append(member.record.kernel)
    return RunCollectives(
        found.collectives,
        [np.flatnonzero(trace.work.kind == comm) for trace in run.traces],
        kernels,
        [base_ns(one, ranks[0]) - clock[one.rank] for one in ranks],
        found.skips,
    )


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

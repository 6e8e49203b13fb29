"""The run as one: collectives matched across its ranks, and all times by one clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tracelens.analysis.analyzer import share
from tracelens.analysis.comm.clocks import Clock, clocks
from tracelens.analysis.comm.matching import Group, MatchedCollective, match
from tracelens.analysis.comm.records import RankCommunication, rank_communication
from tracelens.table import Skip
from tracelens.trace import Run, Scope


class AlignedRun(NamedTuple):
    """The communication of all ranks, made once for whoever compares them.

    The common clock is that of the first rank's host and counts from the first rank's base.

    Attributes:
        ranks: in order of rank; times by the rank's own clock.
        collectives: in order of start, by the common clock.
        clocks: of all ranks.
        shift: rank to the ns that are added to its times to get them by the common clock.
        unmatched: process group to what could not be matched in it.
    """

    ranks: Sequence[RankCommunication]
    collectives: Sequence[MatchedCollective]
    clocks: Sequence[Clock]
    shift: Mapping[int, int]
    unmatched: Mapping[Group, Sequence[Skip]]

    @property
    def skips(self) -> list[Skip]:
        """What could not be matched."""
        return [skip for skips in self.unmatched.values() for skip in skips]

    def waits(self) -> list[tuple[int, str, int, int]]:
        """(rank, what and for whom, start, duration) of all waiting, ns by the rank's own clock."""
        rows = []
        for collective in self.collectives:
            label = f"{collective.collective}: waits for rank {collective.last.rank}"
            wait_ns = collective.wait_ns
            for rank, _, start, _ in collective.participants:
                if wait_ns[rank] > 0:
                    rows.append((rank, label, start - self.shift[rank], wait_ns[rank]))
        return rows


@share("aligned run", part=rank_communication)
def align(ranks: Sequence[RankCommunication], *, scope: Scope = "all") -> AlignedRun:
    """Match the communication of all ranks and put it on one clock.

    Args:
        ranks: from `rank_communication`, in order of rank.
        scope: which GPU work they are made from.
    """
    epoch = ranks[0].epoch_ns
    base = {rank.rank: rank.epoch_ns - epoch if rank.epoch_ns and epoch else 0 for rank in ranks}
    matched = match(ranks, base)
    rank_clocks = clocks(ranks, matched.collectives)
    offset = {clock.rank: clock.offset_ns for clock in rank_clocks}
    collectives = [_shifted(collective, offset) for collective in matched.collectives]
    collectives.sort(key=lambda collective: collective.start)
    shift = {rank: base[rank] - offset[rank] for rank in base}
    return AlignedRun(ranks, collectives, rank_clocks, shift, matched.unmatched)


def _shifted(collective: MatchedCollective, offset: Mapping[int, int]) -> MatchedCollective:
    """A collective by the clock of the first host."""
    if not any(offset[participant.rank] for participant in collective.participants):
        return collective
    participants = (
        participant._replace(
            start=participant.start - offset[participant.rank], end=participant.end - offset[participant.rank]
        )
        for participant in collective.participants
    )
    return collective._replace(participants=tuple(participants))


def align_run(run: Run, scope: Scope = "all") -> AlignedRun:
    """The same of traces that are in memory."""
    return align([rank_communication(trace, scope=scope) for trace in run.traces], scope=scope)

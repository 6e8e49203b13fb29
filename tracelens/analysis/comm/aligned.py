"""The run as one: collectives matched across its ranks, and all times by one clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tracelens.analysis.analyzer import share
from tracelens.analysis.comm.clocks import Clock, clocks
from tracelens.analysis.comm.matching import Group, MatchedCollective, Participant, alone, match_collectives
from tracelens.analysis.comm.point_to_point import match_messages
from tracelens.analysis.comm.records import RankCommunication, rank_communication
from tracelens.analysis.common import distinct_names
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
def align(ranks: Sequence[RankCommunication]) -> AlignedRun:
    """Match the communication of all ranks and put it on one clock.

    Args:
        ranks: from `rank_communication`, in order of rank.
    """
    epoch = ranks[0].epoch_ns
    base = {rank.rank: rank.epoch_ns - epoch if rank.epoch_ns and epoch else 0 for rank in ranks}
    groups = _groups(ranks, base)
    names = distinct_names({group: _description(of_group) for group, of_group in groups.items()})
    unmatched = {group: alone(names[group], of_group) for group, of_group in groups.items()}
    collectives: list[MatchedCollective] = []
    for group, of_group in groups.items():
        matched, skips = match_collectives(names[group], of_group)
        collectives += matched
        unmatched[group] += skips
    # Ends of collectives tell the clocks, which tell which send belongs to which receive.
    rank_clocks = clocks(ranks, collectives)
    offset = {clock.rank: clock.offset_ns for clock in rank_clocks}
    collectives = [
        collective._replace(participants=_shifted(collective.participants, offset))
        for collective in collectives
    ]
    for group, of_group in groups.items():
        on_one_clock = {rank: _shifted(participants, offset) for rank, participants in of_group.items()}
        pairs, skips = match_messages(names[group], group[1], on_one_clock)
        collectives += pairs
        unmatched[group] += skips
    collectives.sort(key=lambda collective: collective.start)
    shift = {rank: base[rank] - offset[rank] for rank in base}
    return AlignedRun(ranks, collectives, rank_clocks, shift, unmatched)


def _groups(
    ranks: Sequence[RankCommunication], base: Mapping[int, int]
) -> dict[Group, dict[int, list[Participant]]]:
    """The communication of all ranks by process group and rank, times counted from the first rank's base."""
    groups: dict[Group, dict[int, list[Participant]]] = {}
    for rank in ranks:
        for record in rank.records:
            start, end = (base[rank.rank] + int(times[record.kernel]) for times in (rank.start, rank.end))
            of_group = groups.setdefault((record.group, record.group_ranks), {})
            of_group.setdefault(rank.rank, []).append(Participant(rank.rank, record, start, end))
    return groups


def _description(of_group: Mapping[int, Sequence[Participant]]) -> str:
    """What the program calls a process group; '' where no record says it."""
    records = (participant.record for participants in of_group.values() for participant in participants)
    return next((record.description for record in records if record.description), "")


def _shifted(participants: Sequence[Participant], offset: Mapping[int, int]) -> tuple[Participant, ...]:
    """The same by the clock of the first host."""
    if not any(offset[participant.rank] for participant in participants):
        return tuple(participants)
    return tuple(
        participant._replace(
            start=participant.start - offset[participant.rank], end=participant.end - offset[participant.rank]
        )
        for participant in participants
    )


def align_run(run: Run, scope: Scope = "all") -> AlignedRun:
    """The same of traces that are in memory."""
    return align([rank_communication(trace, scope=scope) for trace in run.traces])

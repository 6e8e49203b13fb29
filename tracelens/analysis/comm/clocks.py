"""Clock offsets between hosts, from the ends of collectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tracelens.analysis.comm.matching import SEND_RECV, MatchedCollective, Participant
from tracelens.analysis.comm.records import RankComms

# Ends of a collective on one host differ by microseconds, and their median by less. Where traces do not
# name their hosts, ranks whose ends lie further apart than this read different clocks.
_APART_NS = 20_000


class Clock(NamedTuple):
    """The clock of one rank.

    Attributes:
        rank: that reads it.
        host: number of the host, 0 for that of the lowest rank; ranks of one host share a clock.
        offset_ns: to be subtracted from the rank's times to get those of host 0.
        residual_ns: how far apart the ends of collectives still are, the median.
        instances: collectives that say so; 0 where none reaches the rank, whose offset is then not known.
    """

    rank: int
    host: int
    offset_ns: int
    residual_ns: int
    instances: int


def clocks(ranks: Sequence[RankComms], instances: Sequence[MatchedCollective]) -> list[Clock]:
    """The clocks of all ranks.

    All ranks of a collective end almost together, so the median difference of ends between ranks of
    different hosts is the difference of their clocks. Ranks of one host are left as they are.
    """
    together = [instance for instance in instances if instance.collective != SEND_RECV]
    of_rank = _offsets([one.rank for one in ranks], together)
    host = _hosts(ranks, of_rank)
    known: dict[int, list[int]] = {number: [] for number in host.values()}
    for rank, apart in of_rank.items():
        known[host[rank]].append(apart)
    of_host = {number: _median(some) if some else 0 for number, some in known.items()}
    offset = {rank: of_host[number] - of_host[0] for rank, number in host.items()}
    left = _residuals(together, offset)
    return [
        Clock(rank, host[rank], offset[rank], _median(left[rank]) if left[rank] else 0, len(left[rank]))
        for rank in sorted(host)
    ]


def _offsets(ranks: Sequence[int], instances: Sequence[MatchedCollective]) -> dict[int, int]:
    """Offset of each rank against the lowest, one collective away after the other."""
    of_rank: dict[int, list[int]] = {}
    for place, instance in enumerate(instances):
        for member in instance.members:
            of_rank.setdefault(member.rank, []).append(place)
    known = {min(ranks): 0}
    reached = [min(ranks)]
    visited: set[int] = set()
    while reached:
        # After its first visit all ranks of a collective are known, so one visit is all that it takes.
        here = {place for rank in reached for place in of_rank.get(rank, ())} - visited
        visited |= here
        seen: dict[int, list[int]] = {}
        for instance in (instances[place] for place in sorted(here)):
            end = _median(
                [member.end - known[member.rank] for member in instance.members if member.rank in known]
            )
            for member in instance.members:
                if member.rank not in known:
                    seen.setdefault(member.rank, []).append(member.end - end)
        known |= {rank: _median(differences) for rank, differences in seen.items()}
        reached = list(seen)
    return known


def _hosts(ranks: Sequence[RankComms], offset: Mapping[int, int]) -> dict[int, int]:
    """Number of the host of each rank: by the names in the traces, else by clocks that agree."""
    if all(one.host for one in ranks):
        names = dict.fromkeys(one.host for one in sorted(ranks, key=lambda one: one.rank))
        number = {name: place for place, name in enumerate(names)}
        return {one.rank: number[one.host] for one in ranks}
    ordered = sorted((offset.get(one.rank, 0), one.rank) for one in ranks)
    clusters = [[ordered[0]]]
    for here in ordered[1:]:
        if here[0] - clusters[-1][-1][0] > _APART_NS:
            clusters.append([])
        clusters[-1].append(here)
    clusters.sort(key=lambda cluster: min(rank for _, rank in cluster))
    return {rank: number for number, cluster in enumerate(clusters) for _, rank in cluster}


def _residuals(instances: Sequence[MatchedCollective], offset: Mapping[int, int]) -> dict[int, list[int]]:
    left: dict[int, list[int]] = {rank: [] for rank in offset}
    for instance in instances:
        end = _median([member.end - offset[member.rank] for member in instance.members])
        for member in instance.members:
            left[member.rank].append(abs(member.end - offset[member.rank] - end))
    return left


def aligned(instance: MatchedCollective, offset: Mapping[int, int]) -> tuple[Participant, ...]:
    """The members of an instance by the clock of host 0."""
    return tuple(
        member._replace(start=member.start - offset[member.rank], end=member.end - offset[member.rank])
        for member in instance.members
    )


def _median(values: Sequence[int]) -> int:
    """Median in whole ns: times since 1970 are beyond what a double can tell apart."""
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) // 2

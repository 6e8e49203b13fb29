"""Clock offsets between hosts, from the ends of collectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tracelens.analysis.comm.matching import MatchedCollective
from tracelens.analysis.comm.records import RankCommunication

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
        collectives: those that it is measured by; 0 where none reaches the rank and its offset is unknown.
    """

    rank: int
    host: int
    offset_ns: int
    residual_ns: int
    collectives: int


def clocks(ranks: Sequence[RankCommunication], collectives: Sequence[MatchedCollective]) -> list[Clock]:
    """The clocks of all ranks.

    All ranks of a collective end almost together, so the median difference of ends between ranks of
    different hosts is the difference of their clocks. Ranks of one host are left as they are.
    """
    of_rank = _offsets([rank.rank for rank in ranks], collectives)
    host = _hosts(ranks, of_rank)
    known: dict[int, list[int]] = {number: [] for number in host.values()}
    for rank, offset_ns in of_rank.items():
        known[host[rank]].append(offset_ns)
    of_host = {number: _median(offsets) if offsets else 0 for number, offsets in known.items()}
    offset = {rank: of_host[number] - of_host[0] for rank, number in host.items()}
    residuals = _residuals(collectives, offset)
    return [
        Clock(
            rank,
            host[rank],
            offset[rank],
            _median(residuals[rank]) if residuals[rank] else 0,
            len(residuals[rank]),
        )
        for rank in sorted(host)
    ]


def _offsets(ranks: Sequence[int], collectives: Sequence[MatchedCollective]) -> dict[int, int]:
    """Offset of each rank against the lowest, one collective away after the other."""
    of_rank: dict[int, list[int]] = {}
    for index, collective in enumerate(collectives):
        for participant in collective.participants:
            of_rank.setdefault(participant.rank, []).append(index)
    known = {min(ranks): 0}
    reached = [min(ranks)]
    seen_collectives: set[int] = set()
    while reached:
        # Once a collective was looked at, all its ranks are known.
        unseen_collectives = {index for rank in reached for index in of_rank.get(rank, ())} - seen_collectives
        seen_collectives |= unseen_collectives
        seen: dict[int, list[int]] = {}
        for collective in (collectives[index] for index in sorted(unseen_collectives)):
            end = _median(
                [
                    participant.end - known[participant.rank]
                    for participant in collective.participants
                    if participant.rank in known
                ]
            )
            for participant in collective.participants:
                if participant.rank not in known:
                    seen.setdefault(participant.rank, []).append(participant.end - end)
        known |= {rank: _median(differences) for rank, differences in seen.items()}
        reached = list(seen)
    return known


def _hosts(ranks: Sequence[RankCommunication], offset: Mapping[int, int]) -> dict[int, int]:
    """Number of the host of each rank: by the names in the traces, else by clocks that agree."""
    if all(rank.host for rank in ranks):
        names = dict.fromkeys(rank.host for rank in sorted(ranks, key=lambda rank: rank.rank))
        number = {name: number for number, name in enumerate(names)}
        return {rank.rank: number[rank.host] for rank in ranks}
    ordered = sorted((offset.get(rank.rank, 0), rank.rank) for rank in ranks)
    clusters = [[ordered[0]]]
    for reading in ordered[1:]:
        if reading[0] - clusters[-1][-1][0] > _APART_NS:
            clusters.append([])
        clusters[-1].append(reading)
    clusters.sort(key=lambda cluster: min(rank for _, rank in cluster))
    return {rank: number for number, cluster in enumerate(clusters) for _, rank in cluster}


def _residuals(collectives: Sequence[MatchedCollective], offset: Mapping[int, int]) -> dict[int, list[int]]:
    residuals: dict[int, list[int]] = {rank: [] for rank in offset}
    for collective in collectives:
        end = _median([participant.end - offset[participant.rank] for participant in collective.participants])
        for participant in collective.participants:
            residuals[participant.rank].append(abs(participant.end - offset[participant.rank] - end))
    return residuals


def _median(values: Sequence[int]) -> int:
    """Median in whole ns: times since 1970 are beyond what a double can tell apart."""
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) // 2

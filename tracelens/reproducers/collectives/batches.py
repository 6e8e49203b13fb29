"""The collectives of a run as they were launched: on all ranks that recorded them, one kernel a rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import median_low
from typing import NamedTuple

from tracelens.analysis.comm import (
    POINT_TO_POINT,
    SEND_RECV,
    AlignedRun,
    Group,
    MatchedCollective,
    Participant,
    RankCommunication,
    Record,
)
from tracelens.reproducers.inputs import Unreplayable
from tracelens.table import Skip

_UNMATCHED = "no matching collective on the other ranks: their recordings cover another time"
_NO_RECORD = (
    "message sizes missing: recent torch records them (record_param_comms) with ProfilerActivity.CPU, for "
    "calls made while the profiler runs"
)


class Batch(NamedTuple):
    """What one kernel a rank does together: a collective, or sends and receives between two ranks.

    Attributes:
        collectives: the collective; several for sends and receives that were batched.
        participants: whose kernels they are, one a rank, in the order of the process group, by one clock.
        kernels: their names.
    """

    collectives: tuple[MatchedCollective, ...]
    participants: tuple[Participant, ...]
    kernels: tuple[str, ...]

    @property
    def record(self) -> Record:
        return self.participants[0].record

    @property
    def complete(self) -> bool:
        """Whether all ranks of the group are there."""
        size = 2 if self.collectives[0].collective == SEND_RECV else self.record.size
        return len(self.participants) == size

    @property
    def latency_ns(self) -> int:
        """Shortest duration: whoever comes last waits for nobody."""
        return min(member.end - member.start for member in self.participants)

    @property
    def late_ns(self) -> list[int]:
        """How much later than the first each member began."""
        starts = [member.start for member in self.participants]
        return [start - min(starts) for start in starts]


def batches(aligned: AlignedRun) -> tuple[list[Batch], list[Skip]]:
    """All that can be told from the records, in order of time, and a Skip for the rest.

    Ranks are matched within their groups; where only one rank of a group is there, each of its records
    stands for the collective.
    """
    matched_collectives = [*aligned.collectives]
    skips = _unrecorded(aligned.ranks)
    matched = {
        (participant.rank, id(participant.record))
        for collective in aligned.collectives
        for participant in collective.participants
    }
    for group, records in _groups(aligned.ranks).items():
        if len(records) == 1:
            ((rank, rank_records),) = records.items()
            matched_collectives += _single_rank(aligned, rank, rank_records)
        else:
            skips += aligned.unmatched[group] or _unmatched(records, matched)
    made = []
    refused: Counter[tuple[str, str]] = Counter()
    of_rank = {rank_comm.rank: rank_comm for rank_comm in aligned.ranks}
    for joined in _joined(matched_collectives):
        try:
            made.append(_batch(joined, of_rank))
        except Unreplayable as error:
            paired = joined[0].collective == SEND_RECV
            refused["send(s) with their receives" if paired else "collective(s)", str(error)] += len(joined)
    skips += [Skip(f"{count} {kind}", reason) for (kind, reason), count in refused.items()]
    return sorted(made, key=lambda batch: min(member.start for member in batch.participants)), skips


def middle(candidates: Sequence[Batch]) -> Batch:
    """The one of median latency, of those with most ranks."""
    most = max(len(batch.participants) for batch in candidates)
    full = [batch for batch in candidates if len(batch.participants) == most]
    latency = median_low(batch.latency_ns for batch in full)
    return next(batch for batch in full if batch.latency_ns == latency)


def _groups(ranks: Sequence[RankCommunication]) -> dict[Group, dict[int, list[Record]]]:
    """Records by process group and rank."""
    groups: dict[Group, dict[int, list[Record]]] = {}
    for rank_comms in ranks:
        for record in rank_comms.records:
            groups.setdefault((record.group, record.group_ranks), {}).setdefault(rank_comms.rank, []).append(
                record
            )
    return groups


def _single_rank(aligned: AlignedRun, rank: int, records: Sequence[Record]) -> list[MatchedCollective]:
    """Each record of a rank as a collective without the other ranks."""
    rank_comm = next(rank_comm for rank_comm in aligned.ranks if rank_comm.rank == rank)
    collectives = []
    for order, record in enumerate(records):
        name = SEND_RECV if record.collective in POINT_TO_POINT else record.collective
        start, end = (
            int(times[record.kernel]) + aligned.shift[rank] for times in (rank_comm.start, rank_comm.end)
        )
        participant = Participant(rank, record, start, end)
        collectives.append(MatchedCollective(name, record.group, order, (participant,)))
    return collectives


def _joined(matched_collectives: Iterable[MatchedCollective]) -> list[list[MatchedCollective]]:
    """Sends with their receives joined where they share a kernel; collectives each by itself."""
    joined: list[list[MatchedCollective]] = []
    owner: dict[tuple[int, int], list[MatchedCollective]] = {}
    for matched in matched_collectives:
        batch = [matched]
        if matched.collective == SEND_RECV:
            for key in _kernels(matched):
                existing = owner.get(key)
                if existing is not None and existing is not batch:
                    batch += existing
                    existing.clear()
                    owner |= {key: batch for linked in batch for key in _kernels(linked)}
                owner[key] = batch
        joined.append(batch)
    return [batch for batch in joined if batch]


def _kernels(matched: MatchedCollective) -> list[tuple[int, int]]:
    return [(participant.rank, participant.record.kernel) for participant in matched.participants]


def _batch(joined: Sequence[MatchedCollective], ranks: Mapping[int, RankCommunication]) -> Batch:
    kernels = {key for matched in joined for key in _kernels(matched)}
    of_rank = {participant.rank: participant for matched in joined for participant in matched.participants}
    if len(kernels) > len(of_rank):
        raise Unreplayable("the two ranks batched them into different kernels, so they are not one call")
    order: Sequence[int] = joined[0].participants[0].record.group_ranks or sorted(of_rank)
    if joined[0].collective == SEND_RECV:
        order = [participant.rank for participant in joined[0].participants]  # the sender first
    if outsiders := sorted(set(of_rank).difference(order)):
        raise Unreplayable(f"rank {outsiders[0]} is not in its process group")
    participants = tuple(of_rank[rank] for rank in dict.fromkeys(order) if rank in of_rank)
    names = {ranks[rank].kernels[kernel]: None for rank, kernel in sorted(kernels)}
    return Batch(tuple(joined), participants, tuple(names))


def _unmatched(records: Mapping[int, Sequence[Record]], matched: Collection[tuple[int, int]]) -> list[Skip]:
    """Records of a group that are in no matched collective.

    Args:
        records: by rank.
        matched: rank and identity of those that are in one.
    """
    unmatched = [
        (rank, record)
        for rank, rank_records in records.items()
        for record in rank_records
        if (rank, id(record)) not in matched
    ]
    if not unmatched:
        return []
    rank_list = ", ".join(map(str, sorted({rank for rank, _ in unmatched})))
    return [
        Skip(
            f"{len(unmatched)} collective(s) of group {unmatched[0][1].group} on rank {rank_list}", _UNMATCHED
        )
    ]


def _unrecorded(ranks: Sequence[RankCommunication]) -> list[Skip]:
    """Communication kernels that no record belongs to."""
    loose = {
        rank_comms.rank: len(rank_comms.start) - len({record.kernel for record in rank_comms.records})
        for rank_comms in ranks
    }
    count, rank_list = sum(loose.values()), ", ".join(str(rank) for rank, missing in loose.items() if missing)
    return [Skip(f"{count} communication kernel(s) of rank {rank_list}", _NO_RECORD)] if count else []

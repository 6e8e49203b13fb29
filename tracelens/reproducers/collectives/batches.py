"""The collectives of a run as they were launched: on all ranks that recorded them, one kernel a rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median_low
from typing import NamedTuple

from tracelens.analysis.comm import (
    POINT_TO_POINT,
    SEND_RECV,
    Group,
    MatchedCollective,
    Participant,
    RankCommunication,
    Record,
    aligned,
    clocks,
    match,
)
from tracelens.reproducers.inputs import Unreplayable
from tracelens.table import Skip

_LEFT = "other ranks recorded no collective like it at its place: their recordings begin or end elsewhere"
_NO_RECORD = (
    "the trace does not say what they move: recent torch records it with each collective "
    "(record_param_comms) if it is called while the profiler runs, with ProfilerActivity.CPU"
)


class Batch(NamedTuple):
    """What one kernel a rank does together: a collective, or sends and receives between two ranks.

    Attributes:
        instances: the collective; several for sends and receives that were batched.
        members: whose kernels they are, one a rank, in the order of the process group, by one clock.
        kernels: their names.
    """

    instances: tuple[MatchedCollective, ...]
    members: tuple[Participant, ...]
    kernels: tuple[str, ...]

    @property
    def record(self) -> Record:
        return self.members[0].record

    @property
    def whole(self) -> bool:
        """Whether all ranks of the group are there."""
        size = 2 if self.instances[0].collective == SEND_RECV else self.record.size
        return len(self.members) == size

    @property
    def latency_ns(self) -> int:
        """Shortest duration: whoever comes last waits for nobody."""
        return min(member.end - member.start for member in self.members)

    @property
    def late_ns(self) -> list[int]:
        """How much later than the first each member began."""
        starts = [member.start for member in self.members]
        return [start - min(starts) for start in starts]


def batches(ranks: Sequence[RankCommunication]) -> tuple[list[Batch], list[Skip]]:
    """All that can be told from the records, in order of time, and a Skip for the rest.

    Ranks are matched within their groups; where only one rank of a group is there, each of its records
    stands for the collective.
    """
    found: list[MatchedCollective] = []
    skips = _unrecorded(ranks)
    of_rank = {one.rank: one for one in ranks}
    for records in _groups(ranks).values():
        there = [of_rank[rank]._replace(records=some) for rank, some in records.items()]
        if len(records) == 1:
            found += _alone(there[0])
            continue
        matched = match(there, ranks[0])
        found += matched.collectives
        skips += matched.skips or _left(there, matched.collectives)
    offset = {
        clock.rank: clock.offset_ns
        for clock in clocks(ranks, [one for one in found if len(one.participants) > 1])
    }
    made = []
    odd: Counter[tuple[str, str]] = Counter()
    for together in _together(found):
        try:
            made.append(_batch(together, offset, of_rank))
        except Unreplayable as error:
            paired = together[0].collective == SEND_RECV
            odd["send(s) with their receives" if paired else "collective(s)", str(error)] += len(together)
    skips += [Skip(f"{count} {kind}", reason) for (kind, reason), count in odd.items()]
    return sorted(made, key=lambda batch: min(member.start for member in batch.members)), skips


def middle(some: Sequence[Batch]) -> Batch:
    """The one of median latency, of those with most ranks."""
    most = max(len(batch.members) for batch in some)
    full = [batch for batch in some if len(batch.members) == most]
    latency = median_low(batch.latency_ns for batch in full)
    return next(batch for batch in full if batch.latency_ns == latency)


def _groups(ranks: Sequence[RankCommunication]) -> dict[Group, dict[int, list[Record]]]:
    """Records by process group and rank."""
    found: dict[Group, dict[int, list[Record]]] = {}
    for one in ranks:
        for record in one.records:
            found.setdefault((record.group, record.group_ranks), {}).setdefault(one.rank, []).append(record)
    return found


def _alone(one: RankCommunication) -> list[MatchedCollective]:
    """Each record of a rank as a collective without the other ranks."""
    found = []
    for order, record in enumerate(one.records):
        name = SEND_RECV if record.collective in POINT_TO_POINT else record.collective
        member = Participant(one.rank, record, int(one.start[record.kernel]), int(one.end[record.kernel]))
        found.append(MatchedCollective(name, record.group, order, (member,)))
    return found


def _together(instances: Iterable[MatchedCollective]) -> list[list[MatchedCollective]]:
    """Sends with their receives joined where they share a kernel; collectives each by itself."""
    found: list[list[MatchedCollective]] = []
    owner: dict[tuple[int, int], list[MatchedCollective]] = {}
    for instance in instances:
        mine = [instance]
        if instance.collective == SEND_RECV:
            for key in _kernels(instance):
                other = owner.get(key)
                if other is not None and other is not mine:
                    mine += other
                    other.clear()
                    owner |= {key: mine for one in mine for key in _kernels(one)}
                owner[key] = mine
        found.append(mine)
    return [together for together in found if together]


def _kernels(instance: MatchedCollective) -> list[tuple[int, int]]:
    return [(member.rank, member.record.kernel) for member in instance.participants]


def _batch(
    together: Sequence[MatchedCollective], offset: Mapping[int, int], ranks: Mapping[int, RankCommunication]
) -> Batch:
    kernels = {key for instance in together for key in _kernels(instance)}
    of_rank = {member.rank: member for instance in together for member in aligned(instance, offset)}
    if len(kernels) > len(of_rank):
        raise Unreplayable(
            "one rank batched them in other kernels than the other, so they are no single call"
        )
    order: Sequence[int] = together[0].participants[0].record.group_ranks or sorted(of_rank)
    if together[0].collective == SEND_RECV:
        order = [member.rank for member in together[0].participants]  # the sender first
    if strangers := sorted(set(of_rank).difference(order)):
        raise Unreplayable(f"rank {strangers[0]} is not among the ranks that its process group lists")
    members = tuple(of_rank[rank] for rank in dict.fromkeys(order) if rank in of_rank)
    names = {ranks[rank].kernels[kernel]: None for rank, kernel in sorted(kernels)}
    return Batch(tuple(together), members, tuple(names))


def _left(ranks: Sequence[RankCommunication], instances: Sequence[MatchedCollective]) -> list[Skip]:
    """Records of a group that are in no instance."""
    used = {(member.rank, id(member.record)) for one in instances for member in one.participants}
    left = [
        (one.rank, record) for one in ranks for record in one.records if (one.rank, id(record)) not in used
    ]
    if not left:
        return []
    who = ", ".join(map(str, sorted({rank for rank, _ in left})))
    return [Skip(f"{len(left)} collective(s) of group {left[0][1].group} on rank {who}", _LEFT)]


def _unrecorded(ranks: Sequence[RankCommunication]) -> list[Skip]:
    """Communication kernels that no record belongs to."""
    loose = {one.rank: len(one.start) - len({record.kernel for record in one.records}) for one in ranks}
    count, who = sum(loose.values()), ", ".join(str(rank) for rank, number in loose.items() if number)
    return [Skip(f"{count} communication kernel(s) of rank {who}", _NO_RECORD)] if count else []

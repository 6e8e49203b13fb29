"""The same collective on all its ranks: matched by process group and order, and checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tracelens.analysis.comm.records import POINT_TO_POINT, RankComms, Record
from tracelens.table import Skip

SEND_RECV = "send/recv"
# How many collectives one rank's recording may begin before another's.
_AHEAD = 64
_LOOKS = 1 << 22
"""So many pairs are looked at to find where a recording begins in a longer one; of more, every n-th."""


class Participant(NamedTuple):
    """One rank's share of an instance."""

    rank: int
    record: Record
    start: int
    end: int


class MatchedCollective(NamedTuple):
    """One collective, or one send with its receive, on the ranks that recorded it.

    Attributes:
        collective: name; SEND_RECV for a pair.
        group: name of the process group.
        order: position among the collectives of its group.
        members: in order of rank; for a pair the sender first.
    """

    collective: str
    group: str
    order: int
    members: tuple[Participant, ...]

    @property
    def bytes(self) -> int:
        """Largest message of a rank, -1 where none is recorded."""
        return max(member.record.bytes for member in self.members)

    @property
    def latency_ns(self) -> int:
        return min(member.end - member.start for member in self.members)

    @property
    def start_skew_ns(self) -> int:
        starts = [member.start for member in self.members]
        return max(starts) - min(starts)

    @property
    def end_skew_ns(self) -> int:
        ends = [member.end for member in self.members]
        return max(ends) - min(ends)

    @property
    def wall_ns(self) -> int:
        return max(member.end for member in self.members) - min(member.start for member in self.members)

    @property
    def last(self) -> Participant:
        """Who arrived last, the lowest of several ranks."""
        return max(self.members, key=lambda member: (member.start, -member.rank))

    @property
    def wait_ns(self) -> dict[int, int]:
        """What each rank waited until the last one was there, at most its kernel's duration."""
        arrival = self.last.start
        return {
            member.rank: min(arrival - member.start, member.end - member.start) for member in self.members
        }


class Matched(NamedTuple):
    """All instances, and what could not be matched."""

    instances: list[MatchedCollective]
    skips: list[Skip]


Group = tuple[str, tuple[int, ...]]


def match(ranks: Sequence[RankComms], first: RankComms | None = None) -> Matched:
    """Match the collectives and the sends and receives of all ranks.

    Times are by each rank's own clock, counted from where the first rank's clock begins (see `base_ns`).

    Args:
        ranks: of the run, or some of them.
        first: first rank of the run; that of `ranks` unless given.
    """
    groups: dict[Group, dict[int, list[Participant]]] = {}
    for one in ranks:
        base = base_ns(one, first or ranks[0])
        for record in one.records:
            member = Participant(
                one.rank, record, base + int(one.start[record.kernel]), base + int(one.end[record.kernel])
            )
            of_group = groups.setdefault((record.group, record.members), {})
            of_group.setdefault(one.rank, []).append(member)
    instances: list[MatchedCollective] = []
    skips: list[Skip] = []
    for (name, ranks_of_group), of_group in groups.items():
        found, wrong = _collectives(name, of_group)
        pairs, unpaired = _pairs(name, ranks_of_group, of_group)
        instances += [*found, *pairs]
        skips += [*wrong, *unpaired, *_alone(name, of_group)]
    instances.sort(key=lambda instance: min(member.start for member in instance.members))
    return Matched(instances, skips)


def base_ns(one: RankComms, first: RankComms) -> int:
    """What to add to a rank's times to count them from the base of the first rank's clock."""
    return one.epoch_ns - first.epoch_ns if one.epoch_ns and first.epoch_ns else 0


def _collectives(
    name: str, of_group: Mapping[int, list[Participant]]
) -> tuple[list[MatchedCollective], list[Skip]]:
    """Instances of one group, and those whose ranks disagree on what they are."""
    lists = {
        rank: [member for member in members if member.record.collective not in POINT_TO_POINT]
        for rank, members in of_group.items()
    }
    lists = {rank: members for rank, members in lists.items() if members}
    if len(lists) < 2:
        return [], []
    longest = max(lists, key=lambda rank: (len(lists[rank]), -rank))
    shift = {rank: _shift(members, lists[longest]) for rank, members in lists.items()}
    first = min(shift.values())
    found, wrong = [], []
    for order in range(max(shift[rank] + len(members) for rank, members in lists.items()) - first):
        there = [
            members[place]
            for rank, members in sorted(lists.items())
            if 0 <= (place := order + first - shift[rank]) < len(members)
        ]
        if len({_signature(member.record) for member in there}) > 1:
            wrong.append((order, there))
        elif len(there) > 1:
            found.append(MatchedCollective(there[0].record.collective, name, order, tuple(there)))
    return found, _disagreement(name, wrong)


def _shift(members: list[Participant], longest: list[Participant]) -> int:
    """Where in the longest list this one begins: where all agree, and ends lie closest together."""
    signatures = [[_signature(member.record) for member in some] for some in (members, longest)]
    if signatures[0] == signatures[1]:
        return 0
    code: dict[tuple[str, str, int], int] = {}
    mine, theirs = (
        np.array([code.setdefault(one, len(code)) for one in some], dtype=np.int64) for some in signatures
    )
    end, end2 = (np.array([member.end for member in some]) for some in (members, longest))
    shifts = range(-_AHEAD, len(theirs) - len(mine) + _AHEAD + 1)
    every = 1 + len(shifts) * len(mine) // _LOOKS
    least, best = None, 0
    for shift in shifts:
        places = np.arange(max(-shift, 0), min(len(theirs) - shift, len(mine)), every)
        if not len(places):
            continue
        agree = int((mine[places] == theirs[places + shift]).sum())
        apart = float(np.median(np.abs(end[places] - end2[places + shift])))
        # Agreement first; of shifts that agree alike, the one with the smallest difference of ends.
        key = (-agree, apart)
        if least is None or key < least:
            least, best = key, shift
    return best


def _signature(record: Record) -> tuple[str, str, int]:
    """What all ranks of a collective agree on; parts of uneven messages differ."""
    uneven = bool(record.sent_to or record.received_from) or record.collective in (
        "all_to_allv",
        "all_to_all",
    )
    return record.collective, record.dtype, -1 if uneven else record.bytes


def _disagreement(name: str, wrong: list[tuple[int, list[Participant]]]) -> list[Skip]:
    if not wrong:
        return []
    order, there = wrong[0]
    said = "; ".join(
        f"rank {member.rank} {member.record.collective} {member.record.dtype} {member.record.bytes:,} bytes"
        for member in there[:3]
    )
    return [
        Skip(
            f"{len(wrong)} collective(s) of group {name}",
            f"ranks disagree on what they are, so they are not compared; the first is number {order}: {said}",
        )
    ]


def _pairs(
    name: str, ranks: tuple[int, ...], of_group: Mapping[int, list[Participant]]
) -> tuple[list[MatchedCollective], list[Skip]]:
    """Each send with its receive: the n-th from one rank to the other is the n-th that the other receives."""
    kinds: dict[tuple[int, str, int], list[Participant]] = {}
    for rank, members in of_group.items():
        for member in members:
            if member.record.collective in POINT_TO_POINT:
                peer = sum(ranks) - rank if len(ranks) == 2 else member.record.peer
                kinds.setdefault((rank, member.record.collective, peer), []).append(member)
    found, skips = [], []
    if number := sum(len(members) for (_, _, peer), members in kinds.items() if peer < 0):
        reason = "the trace does not say to or from which rank, and the group has more than two"
        skips.append(Skip(f"{number} send(s) and receive(s) of group {name}", reason))
    directions = {(rank, peer) if kind == "send" else (peer, rank) for rank, kind, peer in kinds if peer >= 0}
    both = [(one, other) for one, other in (ranks, ranks[::-1]) if directions] if len(ranks) == 2 else []
    for sender, receiver in both or sorted(directions):
        sends = kinds.get((sender, "send", receiver), [])
        receives = kinds.get((receiver, "recv", sender), [])
        paired = [
            MatchedCollective(SEND_RECV, name, order, (send, receive))
            for order, (send, receive) in enumerate(zip(sends, receives, strict=False))
            if send.record.sent == receive.record.sent and send.record.dtype == receive.record.dtype
        ]
        found += paired
        left = len(sends) + len(receives) - 2 * len(paired)
        if left and sends and receives:
            subject = f"{left} send(s) and receive(s) of group {name} from rank {sender} to rank {receiver}"
            skips.append(Skip(subject, "no counterpart of the same size in the recording"))
    return found, skips


def _alone(name: str, of_group: Mapping[int, list[Participant]]) -> list[Skip]:
    """Groups of which only one rank is there: nobody to compare with."""
    if len(of_group) > 1:
        return []
    ((rank, members),) = of_group.items()
    size = members[0].record.size
    if size <= 1:
        return []
    names = Counter(member.record.collective for member in members)
    listed = ", ".join(f"{count} {what}" for what, count in names.items())
    return [
        Skip(
            f"waiting of rank {rank} in group {name} ({listed})",
            f"of its {size} ranks only this one is there; one rank alone does not show who waited for whom",
        )
    ]

"""The same collective on all its ranks: matched by process group and order, and checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tracelens.analysis.comm.records import POINT_TO_POINT, Record
from tracelens.table import Skip

SEND_RECV = "send/recv"
# How many collectives one rank's recording may begin before another's.
_AHEAD = 64
_LOOKS = 1 << 22
"""So many pairs are looked at to find where a recording begins in a longer one; of more, every n-th."""


class Participant(NamedTuple):
    """One rank's part in a collective."""

    rank: int
    record: Record
    start: int
    end: int


class MatchedCollective(NamedTuple):
    """One collective, or one send with its receive, on the ranks that recorded it.

    Attributes:
        collective: name; SEND_RECV for a pair.
        group: the process group as people know it, see `group_names`.
        order: position among the collectives of its group.
        participants: in order of rank; for a pair the sender first.
    """

    collective: str
    group: str
    order: int
    participants: tuple[Participant, ...]

    @property
    def bytes(self) -> int:
        """Largest message of a rank, -1 where none is recorded."""
        return max(participant.record.bytes for participant in self.participants)

    @property
    def start(self) -> int:
        """When the first rank arrives."""
        return min(participant.start for participant in self.participants)

    @property
    def latency_ns(self) -> int:
        return min(participant.end - participant.start for participant in self.participants)

    @property
    def start_skew_ns(self) -> int:
        starts = [participant.start for participant in self.participants]
        return max(starts) - min(starts)

    @property
    def end_skew_ns(self) -> int:
        ends = [participant.end for participant in self.participants]
        return max(ends) - min(ends)

    @property
    def wall_ns(self) -> int:
        return max(participant.end for participant in self.participants) - self.start

    @property
    def last(self) -> Participant:
        """The last to arrive; of a tie the lowest rank."""
        return max(self.participants, key=lambda participant: (participant.start, -participant.rank))

    @property
    def wait_ns(self) -> dict[int, int]:
        """What each rank waited for the last one to arrive, at most its kernel's duration."""
        arrival = self.last.start
        return {
            participant.rank: min(arrival - participant.start, participant.end - participant.start)
            for participant in self.participants
        }


Group = tuple[str, tuple[int, ...]]


def match_collectives(
    name: str, of_group: Mapping[int, Sequence[Participant]]
) -> tuple[list[MatchedCollective], list[Skip]]:
    """The collectives of one process group; a Skip for those on which its ranks disagree.

    Args:
        name: of the process group, as people know it.
        of_group: its communication by rank, in the order in which the rank asked for it.
    """
    lists = {
        rank: [
            participant for participant in participants if participant.record.collective not in POINT_TO_POINT
        ]
        for rank, participants in of_group.items()
    }
    lists = {rank: participants for rank, participants in lists.items() if participants}
    if len(lists) < 2:
        return [], []
    longest = max(lists, key=lambda rank: (len(lists[rank]), -rank))
    shift = {rank: _shift(participants, lists[longest]) for rank, participants in lists.items()}
    first = min(shift.values())
    matched, wrong = [], []
    for order in range(max(shift[rank] + len(participants) for rank, participants in lists.items()) - first):
        taking_part = [
            participants[index]
            for rank, participants in sorted(lists.items())
            if 0 <= (index := order + first - shift[rank]) < len(participants)
        ]
        if len({_signature(participant.record) for participant in taking_part}) > 1:
            wrong.append((order, taking_part))
        elif len(taking_part) > 1:
            matched.append(
                MatchedCollective(taking_part[0].record.collective, name, order, tuple(taking_part))
            )
    return matched, _disagreement(name, wrong)


def _shift(participants: list[Participant], longest: list[Participant]) -> int:
    """Where in the longest list this one begins: where all agree, and ends lie closest together."""
    signatures = [
        [_signature(participant.record) for participant in participants_of]
        for participants_of in (participants, longest)
    ]
    if signatures[0] == signatures[1]:
        return 0
    code: dict[tuple[str, str, int], int] = {}
    codes, longest_codes = (
        np.array([code.setdefault(signature, len(code)) for signature in side], dtype=np.int64)
        for side in signatures
    )
    end, end2 = (np.array([participant.end for participant in side]) for side in (participants, longest))
    shifts = range(-_AHEAD, len(longest_codes) - len(codes) + _AHEAD + 1)
    every = 1 + len(shifts) * len(codes) // _LOOKS
    least, best = None, 0
    for shift in shifts:
        places = np.arange(max(-shift, 0), min(len(longest_codes) - shift, len(codes)), every)
        if not len(places):
            continue
        agree = int((codes[places] == longest_codes[places + shift]).sum())
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
    order, taking_part = wrong[0]
    records = [(participant.rank, participant.record) for participant in taking_part[:3]]
    described = "; ".join(
        f"rank {rank} {record.collective} {record.dtype} {record.bytes:,} bytes" for rank, record in records
    )
    return [
        Skip(
            f"{len(wrong)} collective(s) of {name}",
            f"ranks disagree on them; skipped; first at position {order}: {described}",
        )
    ]


def alone(name: str, of_group: Mapping[int, Sequence[Participant]]) -> list[Skip]:
    """Groups with only one rank in the run: nothing to compare with."""
    if len(of_group) > 1:
        return []
    ((rank, participants),) = of_group.items()
    size = participants[0].record.size
    if size <= 1:
        return []
    names = Counter(participant.record.collective for participant in participants)
    listed = ", ".join(f"{count} {collective}" for collective, count in names.items())
    return [
        Skip(
            f"waiting of rank {rank} in {name} ({listed})",
            f"only this one of its {size} ranks is in the run; waiting needs at least two",
        )
    ]

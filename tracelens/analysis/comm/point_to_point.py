"""Sends matched with their receives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tracelens.analysis.comm.matching import SEND_RECV, MatchedCollective, Participant
from tracelens.analysis.comm.records import POINT_TO_POINT
from tracelens.table import Skip

_SLACK_NS = 100_000
"""A receive that ends longer than this before its send begins is another's; clocks agree better than this."""
_BAND = 64
"""So many messages in a row may be missing on either side, beyond what the two lists differ by in length."""


class _Link(NamedTuple):
    """The messages of one rank to another, in the order in which each of them asked for it."""

    sends: list[Participant]
    receives: list[Participant]


def match_messages(
    name: str, ranks: tuple[int, ...], of_group: Mapping[int, Sequence[Participant]]
) -> tuple[list[MatchedCollective], list[Skip]]:
    """The sends of a process group, each with its receive.

    NCCL delivers messages from one rank to another in order, so the n-th send belongs to the n-th receive.
    Where the recording of one rank lacks messages, sizes and times say which.

    Args:
        name: of the process group.
        ranks: of the group, as recorded.
        of_group: its communication by rank, in the order in which the rank asked for it, by one clock.
    """
    links: dict[tuple[int, int], _Link] = {}
    unknown = 0
    for rank, participants in of_group.items():
        for participant in participants:
            kind = participant.record.collective
            if kind not in POINT_TO_POINT:
                continue
            peer = _peer(participant, ranks)
            if peer < 0:
                unknown += 1
                continue
            link = links.setdefault((rank, peer) if kind == "send" else (peer, rank), _Link([], []))
            (link.sends if kind == "send" else link.receives).append(participant)
    skips = []
    if unknown:
        reason = "the peer rank is not recorded and the group has more than two ranks"
        skips.append(Skip(f"{unknown} send(s) and receive(s) of {name}", reason))
    matched: list[MatchedCollective] = []
    for (sender, receiver), link in sorted(links.items()):
        pairs = _pairs(*link)
        matched += [MatchedCollective(SEND_RECV, name, order, pair) for order, pair in enumerate(pairs)]
        unpaired = len(link.sends) + len(link.receives) - 2 * len(pairs)
        if unpaired and sender in of_group and receiver in of_group:
            subject = f"{unpaired} send(s) and receive(s) of {name} from rank {sender} to rank {receiver}"
            skips.append(Skip(subject, "no counterpart of the same size and time recorded"))
    return matched, skips


def _peer(participant: Participant, ranks: tuple[int, ...]) -> int:
    """The rank at the other end, -1 where it is not recorded."""
    rank, peer = participant.rank, participant.record.peer
    if peer in (-1, rank) and len(ranks) == 2 and rank in ranks:
        return sum(ranks) - rank
    return -1 if peer == rank else peer


def _pairs(sends: list[Participant], receives: list[Participant]) -> list[tuple[Participant, Participant]]:
    """Each send with its receive."""
    if len(sends) == len(receives) and all(map(_may_pair, sends, receives)):
        return list(zip(sends, receives, strict=True))
    return _best_pairs(sends, receives)


def _may_pair(send: Participant, receive: Participant) -> bool:
    """Whether these may be one message: of one size and type, and not received before it was sent."""
    alike = send.record.sent == receive.record.sent and send.record.dtype == receive.record.dtype
    return alike and receive.end >= send.start - _SLACK_NS


def _best_pairs(
    sends: list[Participant], receives: list[Participant]
) -> list[tuple[Participant, Participant]]:
    """As many pairs in order as there can be; of as many, those whose ends lie closest together.

    The least cost of an alignment of two sequences, by dynamic programming over a band around the diagonal.
    """
    longer = abs(len(sends) - len(receives))
    width = longer + _BAND
    # Cost of the best alignment of the first `row` sends with the first `column` receives: (unpaired, ns).
    previous = {column: (column, 0) for column in range(min(width, len(receives)) + 1)}
    steps: list[dict[int, str]] = [dict.fromkeys(previous, "receive")]
    for row, send in enumerate(sends, start=1):
        current: dict[int, tuple[int, int]] = {}
        step: dict[int, str] = {}
        for column in range(max(row - width, 0), min(row + width, len(receives)) + 1):
            options = []
            if column in previous:
                options.append(((previous[column][0] + 1, previous[column][1]), "send"))
            if column - 1 in current:
                options.append(((current[column - 1][0] + 1, current[column - 1][1]), "receive"))
            if column - 1 in previous and _may_pair(send, receives[column - 1]):
                unpaired, apart = previous[column - 1]
                apart += abs(send.end - receives[column - 1].end)
                options.append(((unpaired, apart), "pair"))
            current[column], step[column] = min(options)
        steps.append(step)
        previous = current
    return _traced_back(sends, receives, steps)


def _traced_back(
    sends: list[Participant], receives: list[Participant], steps: Sequence[Mapping[int, str]]
) -> list[tuple[Participant, Participant]]:
    """The pairs of the best alignment, from the last step of each row and column."""
    row, column = len(sends), len(receives)
    pairs = []
    while row and column:
        step = steps[row][column]
        if step == "pair":
            pairs.append((sends[row - 1], receives[column - 1]))
        row -= step in ("pair", "send")
        column -= step in ("pair", "receive")
    return pairs[::-1]

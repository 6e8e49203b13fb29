"""The run as one: collectives matched across its ranks, sends with receives, all on one clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from tracelens.analysis.analyzer import share
from tracelens.analysis.comm.records import POINT_TO_POINT, RankCommunication, Record, rank_communication
from tracelens.analysis.common import Group, distinct_names
from tracelens.arrays import Bool, Int, median
from tracelens.table import Skip
from tracelens.trace import Run, Scope

SEND_RECV = "send/recv"
# What an alignment of two ranks' collectives costs: one that a rank lacks between others, or before its first
# and after its last, since recordings begin and end at different times; two that disagree; two that end
# apart, as a share of the usual time from one collective to the next, at most this.
_LACKING, _LACKING_AT_EDGE, _DISAGREE, _APART = 0.5, 0.46, 0.9, 0.8
# Pairs of collectives that are looked at to align two ranks; of more, every n-th, or none.
_LOOKS = 1 << 21
# A receive that ends longer than this before its send begins is another's; clocks agree better than this.
_SLACK_NS = 100_000
# So many messages in a row may be missing on either side, beyond what the two lists differ by in length.
_BAND = 64
# Ends of a collective on one host differ by microseconds, and their median by less. Where traces do not
# name their hosts, ranks whose ends lie further apart than this read different clocks.
_APART_NS = 20_000


class AlignedRun(Struct, frozen=True):
    """The communication of all ranks, made once for whoever compares them.

    The common clock is that of the first rank's host and counts from the first rank's base.
    """

    ranks: Sequence[RankCommunication]  # in order of rank; times by the rank's own clock
    collectives: Sequence[MatchedCollective]  # in order of start, by the common clock
    clocks: Sequence[Clock]  # of all ranks
    shift: Mapping[int, int]  # rank to the ns that are added to its times to get them by the common clock
    unmatched: Mapping[Group, Sequence[Skip]]  # process group to what could not be matched in it
    # rank to process group, as people know it, to how many of its collectives the rank lacks between others
    lost: Mapping[int, Mapping[str, int]]

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


class Participant(NamedTuple):
    """One rank's part in a collective; without times where its kernel is not recorded."""

    rank: int
    record: Record
    start: int
    end: int

    @property
    def ran(self) -> bool:
        """Whether its kernel is recorded."""
        return self.record.kernel >= 0


class Transfer(NamedTuple):
    """What the rates of a collective are measured by: a message, and the time in which it moved."""

    rank: int
    bytes: int  # as nccl-tests count it: of an all-to-all the part that stays on the rank is in it
    ns: int


class MatchedCollective(Struct, frozen=True, dict=True):
    """One collective, or one send with its receive, on the ranks that recorded it."""

    collective: str  # name; SEND_RECV for a pair
    group: str  # the process group as people know it, see `group_names`
    order: int  # position among the collectives of its group
    participants: tuple[Participant, ...]  # in order of rank; for a pair the sender first

    @cached_property
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

    @cached_property
    def transfer(self) -> Transfer:
        """The message of the rank that moved most per time.

        Whatever waits for the last rank, that rank does not: what it takes is the transfer. In an all-to-all
        ranks move different amounts, and data moves as soon as its sender is there: into the buffers of a
        rank that is not (93 MB of 403 on 2 H200). So a rank has all its duration to send, and to receive
        from the arrival of its first sender on. That is never less than it took: no rate is above the links'.
        """
        start, end = (np.array([each[time] for each in self.participants], dtype=np.int64) for time in (2, 3))
        if not self.collective.startswith(("all_to_all", "alltoall")) or self.bytes <= 0:
            least = int(np.argmin(end - start))
            return Transfer(self.participants[least].rank, self.bytes, int((end - start)[least]))
        size, records = self.participants[0].record.size, [each.record for each in self.participants]
        # What crosses links, out and in, as messages with their part that stays; and who sends to whom.
        messages = np.array([(each.sent, each.received) for each in records], dtype=float).T
        sends = ~np.eye(len(records), dtype=bool)
        if (matrices := self.traffic) is not None:
            ranks, sent, received = matrices
            moved = np.maximum(sent, received)
            np.fill_diagonal(moved, 0)
            place = [ranks.index(each.rank) for each in self.participants]
            out, into = moved.sum(axis=1)[place], moved.sum(axis=0)[place]
            messages = np.array((out, into)) * size / max(size - 1, 1)
            sends = moved[np.ix_(place, place)] > 0
        first = np.where(sends, start[:, None], np.iinfo(np.int64).max).min(axis=0, initial=int(end.min()))
        if len(records) < size:  # who is not in the run may have sent before
            messages[1] = 0
        open_ns = np.maximum((end - start, end - first), 1)
        direction, row = np.unravel_index(np.argmax(messages / open_ns), open_ns.shape)
        message, ns = messages[direction, row], open_ns[direction, row]
        return Transfer(self.participants[int(row)].rank, round(float(message)), int(ns))

    @property
    def traffic(self) -> tuple[tuple[int, ...], Int, Int] | None:
        """(ranks, sent, received), both matrices from row to column; None if not recorded, or not of all."""
        ranks = self.participants[0].record.group_ranks
        records = {participant.rank: participant.record for participant in self.participants}
        if not ranks or set(ranks) != set(records):
            return None
        # Of an empty message no parts are recorded.
        nothing = (0,) * len(ranks)
        sent = [records[rank].sent_to or nothing * (not records[rank].sent) for rank in ranks]
        received = [records[rank].received_from or nothing * (not records[rank].received) for rank in ranks]
        if any(len(row) != len(ranks) for row in (*sent, *received)):
            return None
        return ranks, np.array(sent, dtype=np.int64), np.array(received, dtype=np.int64).T

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

    @cached_property
    def last(self) -> Participant:
        """The last to arrive; of a tie the lowest rank."""
        return max(self.participants, key=lambda participant: (participant.start, -participant.rank))

    @property
    def wait_ns(self) -> dict[int, int]:
        """What each rank waited for the last one to arrive, at most its kernel's duration.

        An upper bound: in an all-to-all, data of the ranks that are there may move before, at any rate.
        """
        arrival = self.last.start
        return {
            participant.rank: min(arrival - participant.start, participant.end - participant.start)
            for participant in self.participants
        }


def waits_caused(collectives: Sequence[MatchedCollective]) -> list[int]:
    """What all ranks waited for the last one of each collective, ns.

    A kernel of several sends and receives waits once: for the message that takes longest, the first of a tie.
    """
    longest: dict[tuple[int, int], tuple[int, int]] = {}  # rank and kernel to wait and its collective
    for number, collective in enumerate(collectives):
        wait_ns = collective.wait_ns
        for participant in collective.participants:
            key = participant.rank, participant.record.kernel
            if key not in longest or wait_ns[participant.rank] > longest[key][0]:
                longest[key] = wait_ns[participant.rank], number
    caused = [0] * len(collectives)
    for wait, number in longest.values():
        caused[number] += wait
    return caused


class Clock(NamedTuple):
    """The clock of one rank."""

    rank: int  # that reads it
    host: int  # number of the host, 0 for that of the lowest rank; its ranks share a clock, as a rule
    offset_ns: int  # to be subtracted from the rank's times to get those of the lowest rank's clock
    residual_ns: int  # how far apart the ends of collectives still are, the median
    latency_ns: int  # of these collectives, the median
    collectives: int  # those that it is measured by; 0 where none reaches the rank and its offset is unknown


@share("aligned run", part=rank_communication)
def align(ranks: Sequence[RankCommunication]) -> AlignedRun:
    """Match the communication of all ranks and put it on one clock.

    Args:
        ranks: from `rank_communication`, in order of rank.
    """
    epoch = ranks[0].epoch_ns
    base = {rank.rank: rank.epoch_ns - epoch if rank.epoch_ns and epoch else 0 for rank in ranks}
    # The communication of all ranks by process group and rank, times counted from the first rank's base.
    groups: dict[Group, dict[int, list[Participant]]] = {}
    descriptions: dict[Group, str] = {}
    kinds = {(record.group, record.collective) for rank in ranks for record in rank.records}
    for rank in ranks:
        for record in _in_order(rank, kinds):
            start, end = (
                base[rank.rank] + int(times[record.kernel]) if record.kernel >= 0 else 0
                for times in (rank.start, rank.end)
            )
            group = record.group, record.group_ranks
            of_rank = groups.setdefault(group, {}).setdefault(rank.rank, [])
            of_rank.append(Participant(rank.rank, record, start, end))
            descriptions[group] = descriptions.get(group) or record.description
    names = distinct_names(descriptions)
    unmatched = {group: alone(names[group], of_group) for group, of_group in groups.items()}
    collectives: list[MatchedCollective] = []
    lost: dict[int, dict[str, int]] = {}
    for group, of_group in groups.items():
        matched, skips, lacking = match_collectives(names[group], of_group)
        collectives += matched
        unmatched[group] += skips
        for number, count in lacking.items():
            lost.setdefault(number, {})[names[group]] = count
    # Ends of collectives tell the clocks, which tell which send belongs to which receive.
    rank_clocks = clocks(ranks, collectives)
    offset = {clock.rank: clock.offset_ns for clock in rank_clocks}
    collectives = [
        replace(collective, participants=_shifted(collective.participants, offset))
        for collective in collectives
    ]
    for group, of_group in groups.items():
        on_one_clock = {rank: _shifted(participants, offset) for rank, participants in of_group.items()}
        pairs, skips, lacking = match_messages(names[group], group[1], on_one_clock)
        collectives += pairs
        unmatched[group] += skips
        for number, count in lacking.items():
            by_group = lost.setdefault(number, {})
            by_group[names[group]] = by_group.get(names[group], 0) + count
    collectives.sort(key=lambda collective: collective.start)
    shift = {rank: base[rank] - offset[rank] for rank in base}
    return AlignedRun(ranks, collectives, rank_clocks, shift, unmatched, lost)


def _in_order(rank: RankCommunication, kinds: Collection[tuple[str, str]]) -> list[Record]:
    """The records of a rank in the order in which the program asked for them, also those without a kernel.

    `kinds` are the (group, collective) that have kernels: others never do.
    """
    if not rank.without_kernel:
        return rank.records
    records, taken = list[Record](), 0
    for before, record in rank.without_kernel:
        records += rank.records[taken:before]
        taken = before
        if (record.group, record.collective) in kinds:
            records.append(record)
    return records + rank.records[taken:]


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


def match_collectives(
    name: str, of_group: Mapping[int, Sequence[Participant]]
) -> tuple[list[MatchedCollective], list[Skip], dict[int, int]]:
    """The collectives of one process group; a Skip for those on which its ranks disagree.

    All ranks of a group ask for the same collectives in the same order, so the n-th of one rank is the n-th
    of the others, unless a recording lacks some: then the ranks are aligned, see `_slots`.

    Args:
        name: of the process group, as people know it.
        of_group: its communication by rank, in the order in which the rank asked for it.

    Returns:
        (the collectives; what could not be matched; rank to how many it lacks between others that it has).
    """
    lists = {
        rank: collectives
        for rank, participants in sorted(of_group.items())
        if (collectives := [each for each in participants if each.record.collective not in POINT_TO_POINT])
    }
    if len(lists) < 2:
        return [], [], {}
    longest = lists[max(lists, key=lambda rank: (len(lists[rank]), -rank))]
    slots = {rank: _slots(participants, longest) for rank, participants in lists.items()}
    columns: dict[tuple[int, int], list[Participant]] = {}
    for rank, participants in lists.items():
        for slot, participant in zip(slots[rank], participants, strict=True):
            columns.setdefault(slot, []).append(participant)
    matched, wrong = [], []
    for order, slot in enumerate(sorted(columns)):
        taking_part, ran = columns[slot], [each for each in columns[slot] if each.ran]
        if len({_signature(participant.record) for participant in taking_part}) > 1:
            wrong.append((order, taking_part))
        elif len(ran) > 1:
            matched.append(MatchedCollective(ran[0].record.collective, name, order, tuple(ran)))
    lacking = {
        rank: missing
        for rank, of_rank in slots.items()
        if (missing := sum(of_rank[0] < slot < of_rank[-1] for slot in columns) - len(of_rank) + 2) > 0
        and len(of_rank) > 1
    }
    # Where ranks of a group are not recorded, several may go by one name.
    ranks, size = longest[0].record.group_ranks, longest[0].record.size
    if not (set(lists) <= set(ranks) if ranks else len(lists) <= size):
        lacking = {}
    if not wrong:
        return matched, [], lacking
    order, taking_part = wrong[0]
    described = "; ".join(
        f"rank {rank} {record.collective} {record.dtype} {record.bytes:,} bytes"
        for rank, record, _, _ in taking_part[:3]
    )
    reason = f"ranks disagree on them; skipped; first at position {order}: {described}"
    return matched, [Skip(f"{len(wrong)} collective(s) of {name}", reason)], lacking


def _slots(participants: list[Participant], longest: list[Participant]) -> list[tuple[int, int]]:
    """Where each collective of a rank stands among those of the rank with most: (n, 0) is its n-th.

    (n, 1), (n, 2), ... follow the n-th, and that rank lacks them. The alignment with the least edit distance,
    in kind, type and size of the collectives and in when they end: sequences repeat themselves, and ends tell
    which is which.
    """
    code: dict[tuple[str, str, int], int] = {}
    codes, codes2 = (
        np.array([code.setdefault(_signature(each.record), len(code)) for each in side], dtype=np.int64)
        for side in (participants, longest)
    )
    in_order = [(slot, 0) for slot in range(len(participants))]
    if participants is longest:
        return in_order
    ends, ends2 = (np.array([each.end for each in side]) for side in (participants, longest))
    ran, ran2 = (np.array([each.ran for each in side]) for side in (participants, longest))
    usual_ns = max(float(median(np.diff(ends2[ran2]))) if ran2.sum() > 1 else 1.0, 1.0)
    if np.array_equal(codes, codes2) and not _shifted_within(ends, ends2, ran & ran2, usual_ns):
        return in_order
    band = len(ends2) - len(ends) + _BAND
    offset = _usual_difference(ends, ends2, codes, codes2, ran, ran2, band, usual_ns)

    def cost(row: int, column: int) -> float:
        """Of taking these for one."""
        apart = abs(int(ends[row] - ends2[column]) - offset) / usual_ns if ran[row] and ran2[column] else 0.0
        return min(apart, _APART) + (_DISAGREE if codes[row] != codes2[column] else 0.0)

    # From both ends, what is the same beyond doubt; what is left between is aligned.
    head, tail, shorter = 0, 0, min(len(ends), len(ends2))
    while head < shorter and cost(head, head) < _LACKING / 2:
        head += 1
    while tail < shorter - head and cost(len(ends) - 1 - tail, len(ends2) - 1 - tail) < _LACKING / 2:
        tail += 1
    rows, columns = range(head, len(ends) - tail), range(head, len(ends2) - tail)
    lacking_head, lacking_tail = (_LACKING if same else _LACKING_AT_EDGE for same in (head, tail))
    if len(rows) * min(2 * band, len(columns)) <= _LOOKS:
        pair_of = _least_cost(rows, columns, cost, band, lacking_head, lacking_tail)
    else:  # as they follow each other
        pair_of = {row: row + (len(ends2) - len(ends) if tail > head else 0) for row in rows}
    first_pair = min(pair_of, default=rows.stop)
    slots: list[tuple[int, int]] = []
    for row in range(len(ends)):
        if row < head:
            slots.append((row, 0))
        elif row >= rows.stop:
            slots.append((row + len(ends2) - len(ends), 0))
        elif row in pair_of:
            slots.append((pair_of[row], 0))
        elif head or row > first_pair:
            slots.append((slots[-1][0], slots[-1][1] + 1))
        else:
            first = pair_of.get(first_pair, columns.stop)
            slots.append((row - first_pair, 0) if not first else (first - 1, row - head + 1))
    return slots


def _shifted_within(ends: Int, ends2: Int, ran: Bool, usual_ns: float) -> bool:
    """Whether equal sequences end together for a part, and elsewhere some places apart.

    Then each of two ranks lacks another one. On CPUs ends lie apart anyhow.
    """
    rows = np.flatnonzero(ran)
    if not len(rows):
        return False
    apart = ends[rows] - ends2[rows]
    usual = np.sort(apart)[len(apart) // 2]
    apart = np.abs(apart - usual)
    off = ends[rows[apart > usual_ns / 2]] - usual
    if not len(off) or median(apart) > usual_ns / 10:
        return False
    others = np.sort(ends2[rows])
    after = np.clip(np.searchsorted(others, off), 1, max(len(others) - 1, 1))
    near = np.minimum(
        np.abs(others[np.minimum(after, len(others) - 1)] - off), np.abs(others[after - 1] - off)
    )
    return bool((near < usual_ns / 10).any())


def _usual_difference(
    ends: Int, ends2: Int, codes: Int, codes2: Int, ran: Bool, ran2: Bool, band: int, usual_ns: float
) -> int:
    """By how much one clock is ahead: the difference of ends that most pairs of equal collectives share."""
    apart = [np.empty(0, dtype=np.int64)]
    every = 1 + (band + _BAND) * len(ends) // _LOOKS
    for shift in range(-_BAND, band + 1):
        row = np.arange(max(-shift, 0), min(len(ends2) - shift, len(ends)), every)
        row = row[(codes[row] == codes2[row + shift]) & ran[row] & ran2[row + shift]]
        apart.append(ends[row] - ends2[row + shift])
    differences = np.sort(np.concatenate(apart))
    if not len(differences):
        return 0
    alike = np.searchsorted(differences, differences + usual_ns / 4, side="right") - np.arange(
        len(differences)
    )
    best = np.flatnonzero(alike == alike.max())
    first = best[np.argmin(np.abs(differences[best]))]
    return int(differences[first + (alike[first] - 1) // 2])


def _least_cost(
    rows: range,
    columns: range,
    cost: Callable[[int, int], float],
    band: int,
    lacking_head: float,
    lacking_tail: float,
) -> dict[int, int]:
    """Row to column, both ascending, so that pairs and what is left out cost least.

    What is left out before the first pair costs `lacking_head` each, behind the last one `lacking_tail`.
    """
    least = [[lacking_head * column for column in range(len(columns) + 1)]]
    steps = [bytearray(b"c" * (len(columns) + 1))]
    never = float("inf")
    for row in range(1, len(rows) + 1):
        above = least[-1]
        current, step = [never] * len(above), bytearray(b"r" * len(above))
        current[0] = lacking_head * row
        for column in range(max(row - band, 1), min(row + band, len(columns)) + 1):
            lacking_row = lacking_tail if column == len(columns) else _LACKING
            lacking_column = lacking_tail if row == len(rows) else _LACKING
            options = (
                (above[column - 1] + cost(rows[row - 1], columns[column - 1]), ord("p")),
                (above[column] + lacking_row, ord("r")),
                (current[column - 1] + lacking_column, ord("c")),
            )
            current[column], step[column] = min(options)
        least.append(current)
        steps.append(step)
    pair_of = {}
    row, column = len(rows), len(columns)
    while row and column:
        step_back = chr(steps[row][column])
        if step_back == "p":
            pair_of[rows[row - 1]] = columns[column - 1]
        row -= step_back in "pr"
        column -= step_back in "pc"
    return pair_of


def _signature(record: Record) -> tuple[str, str, int]:
    """What all ranks of a collective agree on; parts of uneven messages differ."""
    is_all_to_all = record.collective in ("all_to_allv", "all_to_all")
    uneven = bool(record.sent_to or record.received_from) or is_all_to_all
    return record.collective, record.dtype, -1 if uneven else record.bytes


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


def match_messages(
    name: str, ranks: tuple[int, ...], of_group: Mapping[int, Sequence[Participant]]
) -> tuple[list[MatchedCollective], list[Skip], Counter[int]]:
    """The sends of a process group, each with its receive.

    NCCL delivers messages from one rank to another in order, so the n-th send belongs to the n-th receive.
    Where the recording of one rank lacks messages, sizes and times say which.

    Args:
        name: of the process group.
        ranks: of the group, as recorded.
        of_group: its communication by rank, in the order in which the rank asked for it, by one clock.

    Returns:
        (the pairs; what could not be matched; rank to how many it lacks between others that it has).
    """
    # (sender, receiver) to its sends and receives, in the order in which each of them asked for it.
    links: dict[tuple[int, int], tuple[list[Participant], list[Participant]]] = {}
    unknown = 0
    for rank, participants in of_group.items():
        for participant in participants:
            kind = participant.record.collective
            if kind not in POINT_TO_POINT or not participant.ran:
                continue
            peer = participant.record.peer
            if peer in (-1, rank) and len(ranks) == 2 and rank in ranks:
                peer = sum(ranks) - rank
            if peer in (-1, rank):
                unknown += 1
                continue
            sends, receives = links.setdefault((rank, peer) if kind == "send" else (peer, rank), ([], []))
            (sends if kind == "send" else receives).append(participant)
    skips = []
    if unknown:
        reason = "the peer rank is not recorded and the group has more than two ranks"
        skips.append(Skip(f"{unknown} send(s) and receive(s) of {name}", reason))
    matched: list[MatchedCollective] = []
    lacking = Counter[int]()
    for (sender, receiver), (sends, receives) in sorted(links.items(), key=lambda link: link[0]):
        if len(sends) == len(receives) and all(map(_may_pair, sends, receives)):
            pairs = list(zip(sends, receives, strict=True))
        else:
            pairs = _best_pairs(sends, receives)
        matched += [MatchedCollective(SEND_RECV, name, order, pair) for order, pair in enumerate(pairs)]
        unpaired = len(sends) + len(receives) - 2 * len(pairs)
        if unpaired and sender in of_group and receiver in of_group:
            subject = f"{unpaired} send(s) and receive(s) of {name} from rank {sender} to rank {receiver}"
            skips.append(Skip(subject, "no counterpart of the same size and time recorded"))
            for side, other, own in ((0, receiver, sends), (1, sender, receives)):
                paired = {id(pair[side]) for pair in pairs}
                rows = [row for row, each in enumerate(own) if id(each) in paired]
                if rows and (between := rows[-1] - rows[0] + 1 - len(rows)):
                    lacking[other] += between
    return matched, skips, lacking


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
    # Back along the best alignment, from the last step of each row and column.
    row, column = len(sends), len(receives)
    pairs = []
    while row and column:
        way = steps[row][column]
        if way == "pair":
            pairs.append((sends[row - 1], receives[column - 1]))
        row -= way in ("pair", "send")
        column -= way in ("pair", "receive")
    return pairs[::-1]


def clocks(ranks: Sequence[RankCommunication], collectives: Sequence[MatchedCollective]) -> list[Clock]:
    """The clocks of all ranks.

    All ranks of a collective end almost together, so the median difference of ends between ranks of
    different hosts is the difference of their clocks. Ranks of one named host are left as they are.
    """
    # Offset of each rank against the lowest, one collective away after the other.
    of_rank: dict[int, list[int]] = {}
    for index, collective in enumerate(collectives):
        for participant in collective.participants:
            of_rank.setdefault(participant.rank, []).append(index)
    lowest = min(rank.rank for rank in ranks)
    measured, reached, compared = {lowest: 0}, [lowest], set[int]()
    while reached:
        # Once a collective was looked at, all its ranks are known.
        to_compare = {index for rank in reached for index in of_rank.get(rank, ())} - compared
        compared |= to_compare
        apart: dict[int, list[int]] = {}
        for members in (collectives[index].participants for index in sorted(to_compare)):
            end = _median(
                [member.end - measured[member.rank] for member in members if member.rank in measured]
            )
            for member in members:
                if member.rank not in measured:
                    apart.setdefault(member.rank, []).append(member.end - end)
        measured |= {rank: _median(differences) for rank, differences in apart.items()}
        reached = list(apart)
    # The clock of each rank: by the names of hosts in the traces, else clocks that agree are one.
    if all(rank.host for rank in ranks):
        names = dict.fromkeys(rank.host for rank in sorted(ranks, key=lambda rank: rank.rank))
        number_of = {name: number for number, name in enumerate(names)}
        clock = {rank.rank: number_of[rank.host] for rank in ranks}
    else:
        readings = sorted((measured.get(rank.rank, 0), rank.rank) for rank in ranks)
        clusters = [[readings[0]]]
        for reading in readings[1:]:
            if reading[0] - clusters[-1][-1][0] > _APART_NS:
                clusters.append([])
            clusters[-1].append(reading)
        clusters.sort(key=lambda cluster: min(rank for _, rank in cluster))
        clock = {rank: number for number, cluster in enumerate(clusters) for _, rank in cluster}
    of_clock: dict[int, list[int]] = {number: [] for number in clock.values()}
    for rank, offset_ns in measured.items():
        of_clock[clock[rank]].append(offset_ns)
    median = {number: _median(offsets) if offsets else 0 for number, offsets in of_clock.items()}
    offset = {rank: median[number] - median[0] for rank, number in clock.items()}
    host = dict.fromkeys(clock, 0) if _is_one_machine(ranks) else clock
    # How far the ends of collectives are apart once the offsets are subtracted.
    residuals: dict[int, list[int]] = {rank: [] for rank in offset}
    latencies: dict[int, list[int]] = {rank: [] for rank in offset}
    for collective in collectives:
        latency_ns = collective.latency_ns
        ends = {member.rank: member.end - offset[member.rank] for member in collective.participants}
        typical = _median([*ends.values()])
        for rank, end in ends.items():
            residuals[rank].append(abs(end - typical))
            latencies[rank].append(latency_ns)
    return [
        Clock(
            rank=rank,
            host=host[rank],
            offset_ns=offset[rank],
            residual_ns=_median(residuals[rank] or [0]),
            latency_ns=_median(latencies[rank] or [0]),
            collectives=len(residuals[rank]),
        )
        for rank in sorted(host)
    ]


def _is_one_machine(ranks: Sequence[RankCommunication]) -> bool:
    """Whether ranks whose hosts have no names have GPUs of different numbers.

    On another machine some would have the first GPU again.
    """
    gpus = [gpu for rank in ranks for gpu in rank.gpus]
    return not any(rank.host for rank in ranks) and len({*gpus}) == len(gpus) >= len(ranks) > 0


def _median(values: Sequence[int]) -> int:
    """Median in whole ns: times since 1970 are beyond what a double can tell apart."""
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) // 2

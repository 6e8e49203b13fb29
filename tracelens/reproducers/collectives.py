"""Collectives as standalone scripts of several ranks, with the traced message sizes, types and split sizes.

A rank that comes early waits for the others inside its kernel. What a trace and a replay have in common is
the rank that waits least, so they are compared by the shortest duration over the ranks of each call: in the
trace `Instance.latency_ns`, in the replay the least of the ranks' device times, where all ranks are held up
before each call until the last one is there. The median over calls is the script's time (`median_us`); that
of the slowest rank (`max_us`) and of each rank (`rank_us`) stand beside it. nccl-tests averages over ranks
instead, and over calls in a row. Bandwidths are nccl-tests', of the largest message of a rank. Where only
some ranks of a group were recorded, the shortest of their durations may contain waiting.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median, median_low
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from tracelens.analysis.comm import (
    POINT_TO_POINT,
    SEND_RECV,
    AlignedRun,
    Group,
    MatchedCollective,
    Participant,
    RankCommunication,
    Record,
    align_run,
)
from tracelens.devices import bus_factor
from tracelens.dtypes import element_bytes, epsilon, torch_dtype
from tracelens.reproducers.arguments import Unreplayable
from tracelens.reproducers.folder import Script
from tracelens.reproducers.scripts import (
    COLLECTIVE_KINDS,
    NAMES,
    WIDTH,
    SourceText,
    about,
    literal,
    plain,
    render,
    timed,
)
from tracelens.table import Skip
from tracelens.trace import Run, Union

_WAITING = "Recorded only on rank {} of {}: the traced time may include waiting for the others."
_CUT = "The group has {} ranks; messages are cut to the first {}: no traced time to compare with."
_NO_KERNEL = "no GPU kernels; for CPU collectives (gloo) the profiler records no sizes"

Matrix = tuple[tuple[int, ...], ...]
_NO_SIZE = "the trace has no {}; recent torch records it per collective"
_LISTS = 30
"""Entries of a list that the profiler writes; it cuts off the rest."""


class CollectiveMessage(NamedTuple):
    """What tells collectives apart."""

    name: str  # as recorded
    kind: str  # of COLLECTIVE_KINDS
    ranks: int  # of the group
    dtype: str  # torch's name of the element type
    elements: int | Matrix  # of one rank's piece, or from rank (row) to rank

    @property
    def bytes(self) -> int:
        """Size of the largest message of a rank, as nccl-tests count it."""
        if isinstance(self.elements, tuple):
            elements = max(*map(sum, self.elements), *map(sum, zip(*self.elements, strict=True)))
        else:
            pieces = COLLECTIVE_KINDS[self.kind].sent + COLLECTIVE_KINDS[self.kind].received
            elements = self.elements * (self.ranks if "RANKS" in pieces else 1)
        return elements * element_bytes(self.dtype)

    def cut(self, ranks: int) -> CollectiveMessage:
        if self.ranks <= ranks:
            return self
        elements = self.elements
        if isinstance(elements, tuple):
            elements = tuple(row[:ranks] for row in elements[:ranks])
        return self._replace(ranks=ranks, elements=elements)


_UNMATCHED = "no matching collective on the other ranks: their recordings cover another time"
_NO_RECORD = (
    "message sizes missing: recent torch records them (record_param_comms) with ProfilerActivity.CPU, for "
    "calls made while the profiler runs"
)


class CollectiveBatch(NamedTuple):
    """What one kernel a rank does together: a collective, or sends and receives between two ranks."""

    # the collective; several for sends and receives that were batched
    collectives: tuple[MatchedCollective, ...]
    # whose kernels they are, one a rank, in the order of the process group, by one clock
    participants: tuple[Participant, ...]
    kernels: tuple[str, ...]  # their names

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


def collectives(
    run: Run, *, ranks: int | None = None, during: Mapping[int, Union] | None = None
) -> tuple[list[Script], list[Skip]]:
    """A script for each different collective: same name, size of the group, element type and sizes.

    Args:
        run: the ranks of a job; also some of them, though all_to_allv needs all of its group.
        ranks: cut groups down to their first ranks, so that fewer GPUs will do; such a script has no traced
            time to be compared with.
        during: by rank, ns by the clock of its trace: only collectives that run then on any rank.

    Returns:
        the scripts, those with most time first, and what could not be made, with the reason.
    """
    aligned = align_run(run)
    all_batches, skips = batches(aligned)
    if during is not None:
        running = []  # on any of its ranks
        for batch in all_batches:
            for member in batch.participants:
                when = during.get(member.rank)
                own = np.array([[member.start], [member.end]]) - aligned.shift[member.rank]
                if when is not None and len(when.start) and int(when.covered(*own)[0]) > 0:
                    running.append(batch)
                    break
        all_batches = running
    devices = sorted({name for trace in run.traces for name in trace.meta.devices.values()})
    by_message: dict[CollectiveMessage, list[CollectiveBatch]] = {}
    refused: Counter[tuple[str, str]] = Counter()
    for batch in all_batches:
        try:
            by_message.setdefault(message(batch), []).append(batch)
        except Unreplayable as error:
            subject = f"{batch.collectives[0].collective} of group {batch.record.group}"
            refused[subject, str(error)] += 1
    scripts = []
    for full, same_message in by_message.items():
        cut = full if ranks is None else full.cut(ranks)
        if cut.bytes and cut.ranks > 1:
            try:
                scripts.append(_script(full, cut, same_message, devices))
            except Unreplayable as error:
                refused[full.name, str(error)] += len(same_message)
        else:
            refused[full.name, f"no messages among the first {ranks} ranks of its group"] += len(same_message)
    skips += [Skip(f"{count} {subject}", reason) for (subject, reason), count in refused.items()]
    if not all_batches and not skips:
        names = [name for trace in run.traces for name in trace.arrays.names]
        if any(name.startswith("c10d::") for name in names):
            skips.append(Skip("all collectives", _NO_KERNEL))
    return sorted(scripts, key=lambda script: -script.total_us), skips


def _script(
    traced: CollectiveMessage,
    cut: CollectiveMessage,
    same_message: Sequence[CollectiveBatch],
    devices: Sequence[str],
) -> Script:
    """The script for batches of one message, of which it runs what `cut` leaves."""
    times = [batch.latency_ns / 1e3 for batch in same_message]
    uncut, typical, kind = cut == traced, middle(same_message), COLLECTIVE_KINDS[cut.kind]
    kept = typical.participants[: cut.ranks] if len(typical.participants) == traced.ranks else ()
    partial = next((batch for batch in same_message if not batch.complete), None)
    note = "traced_us may include waiting" if uncut and partial else ""
    # What gloo runs in the place of the traced collective; "" if it runs the same.
    bytewise = cut.dtype.startswith("float8")
    on_cpu = f"gloo lacks {cut.dtype}: sent as bytes" if bytewise else kind.instead[1]

    kernels = dict.fromkeys(name.partition("(")[0] for batch in same_message for name in batch.kernels)
    groups = dict.fromkeys(batch.record.description or batch.record.group for batch in same_message)
    comments = [
        f"{traced.name}: {traced.ranks} ranks, up to {traced.bytes:,} bytes {traced.dtype} each, in "
        f"{', '.join(groups)}",
        f"{timed(times, devices)}: {', '.join(kernels)}",
    ]
    if partial:
        present = ", ".join(str(participant.rank) for participant in partial.participants)
        comments.append(_WAITING.format(present, traced.ranks))
    if not uncut:
        comments.append(_CUT.format(traced.ranks, cut.ranks))
    assumed = [
        "a sum" if kind.reduces else "",
        "the first rank as the root" if cut.kind in ("broadcast", "reduce", "gather", "scatter") else "",
        "one tensor of all the bytes" if "coalesced" in cut.name else "",
    ]
    if any(assumed):
        comments.append(f"Assumed, not recorded: {', '.join(filter(None, assumed))}.")

    if isinstance(cut.elements, int):
        elements = SourceText(literal(cut.elements))
    else:
        indent = " " * len("COUNT = [")
        wrap = textwrap.TextWrapper(WIDTH, initial_indent=indent, subsequent_indent=indent)
        elements = SourceText("\n".join(wrap.wrap(literal([list(row) for row in cut.elements]))).strip())
    text = render(
        "collective.py.j2",
        {
            "kind": kind,
            "matrix": not isinstance(cut.elements, int),
            "by_rank": uncut and bool(kept),
            "started": bool(kept),
            "other_on_cpu": bool(on_cpu),
            "noted": bool(note),
            "paired": cut.kind == SEND_RECV,
            "bytewise": bytewise,
            "inexact": kind.reduces and cut.ranks > _largest_exact(cut.dtype),
        },
        about=about(comments),
        note=note,
        note_on_cpu=on_cpu,
        name=cut.name,
        ranks=cut.ranks,
        dtype=cut.dtype,
        elements=elements,
        bytes=cut.bytes,
        factor=bus_factor(cut.kind, cut.ranks),
        traced_us=round(median(times), 3) if uncut else None,
        traced_on=plain(", ".join(devices)),
        traced_rank_us=_row(
            [(participant.end - participant.start) / 1e3 for participant in kept] if uncut else []
        ),
        start_us=_row([late / 1e3 for late in typical.late_ns[: len(kept)]]),
        most=max(2, min(128, _largest_exact(cut.dtype) // cut.ranks)),
    )
    return Script(
        name=cut.name.strip("_").replace("/", "_"),
        kind="collective",
        subject=cut.name,
        shapes=f"{cut.bytes:,} bytes {cut.dtype}, {cut.ranks} ranks",
        text=text,
        count=len(same_message),
        traced_us=round(median(times), 3) if uncut else 0.0,
        total_us=sum(times),
        processes=cut.ranks,
    )


def _row(values: Sequence[float]) -> SourceText:
    """Source of a list of times in us."""
    text = literal([round(value, 1) for value in values])
    return SourceText(
        "\n".join(textwrap.wrap(text, WIDTH - len("TRACED_RANK_US = "), subsequent_indent="    "))
    )


def _largest_exact(dtype: str) -> int:
    """The whole number up to which all have a value of their own; 127 for narrow integers."""
    spacing = epsilon(dtype)
    return int(2 / spacing) if spacing else {"int64": 1 << 62, "int32": 1 << 30}.get(dtype, 127)


# ====================
# What a collective moves: the part of it that a script needs.


def message(batch: CollectiveBatch) -> CollectiveMessage:
    """What a batch moves.

    Raises:
        Unreplayable: the trace does not say enough.
    """
    name, record = batch.collectives[0].collective, batch.record
    if name not in NAMES:
        moves = name in ("barrier", "wait", "coalesced")
        raise Unreplayable("moves no data" if moves else "unknown collective")
    kind, ranks = NAMES[name], 2 if name == SEND_RECV else record.size
    if ranks < 1:
        raise Unreplayable(_NO_SIZE.format("size of its group"))
    if ranks == 1:
        raise Unreplayable("single-rank group: nothing leaves the GPU")
    dtype = torch_dtype(record.dtype)
    if not dtype or dtype.startswith("complex"):
        raise Unreplayable(f"element type {record.dtype[:40]!r} is not supported for messages")
    if dtype == "bool":
        dtype = "uint8"  # a truth value is a byte to libraries
    width, records = element_bytes(dtype), [participant.record for participant in batch.participants]
    sizes = {(own.sent, own.received) for own in records}
    is_split = name.endswith("v") or any(own.sent_to or own.received_from for own in records)
    elements: int | Matrix
    if kind == SEND_RECV:
        elements = _sends(batch, width)
    elif is_split or (kind == "all_to_all" and len(sizes) > 1):
        kind, elements = "all_to_allv", _matrix(batch, width)
    else:
        elements = _piece(kind, ranks, sizes, width)
    moved = CollectiveMessage(name, kind, ranks, dtype, elements)
    if moved.bytes <= 0:
        raise Unreplayable("moves no data")
    return moved


def _piece(kind: str, ranks: int, sizes: set[tuple[int, int]], width: int) -> int:
    """Elements of one rank's piece, from the (sent, received) bytes that its ranks recorded."""
    if len(sizes) > 1:
        raise Unreplayable("its ranks recorded different sizes but no split sizes")
    ((sent, received),) = sizes
    large, small = max(sent, received), min(sent, received)
    if large < 0:
        raise Unreplayable(_NO_SIZE.format("message size"))
    if "RANKS" not in COLLECTIVE_KINDS[kind].sent + COLLECTIVE_KINDS[kind].received:
        total, pieces = large, 1
    elif kind == "all_to_all" or small < 0:
        total, pieces = large, ranks
    else:  # one side is a piece, the other all of them
        total, pieces = small * ranks, ranks
        if total != large:
            raise Unreplayable(f"{small:,} bytes per rank do not match {large:,} bytes for all {ranks} ranks")
    if total % (pieces * width):
        raise Unreplayable(f"{total:,} bytes do not divide evenly among {ranks} ranks")
    return total // (pieces * width)


def _matrix(batch: CollectiveBatch, width: int) -> Matrix:
    """Elements from rank (row) to rank."""
    record = batch.record
    if not batch.complete:
        present = [participant.rank for participant in batch.participants]
        missing = [rank for rank in record.group_ranks if rank not in present]
        more = ", ..." if len(missing) > 8 else ""
        listed = f" (missing: {', '.join(map(str, missing[:8]))}{more})" if missing else ""
        raise Unreplayable(
            f"split sizes known for {len(present)} of {record.size} ranks{listed}; pass all traces"
        )
    if record.size > _LISTS:
        raise Unreplayable(
            f"split sizes of {record.size} ranks: the profiler truncates lists after {_LISTS} entries"
        )
    (matched,) = batch.collectives
    participants, nothing = [], (0,) * record.size
    for participant in matched.participants:
        # The record leaves parts out where nothing is sent or received at all.
        own = participant.record
        if not own.sent and not own.sent_to:
            own = own._replace(sent_to=nothing)
        if not own.received and not own.received_from:
            own = own._replace(received_from=nothing)
        participants.append(participant._replace(record=own))
    splits = replace(matched, participants=tuple(participants)).traffic
    if splits is None:
        raise Unreplayable("not all ranks recorded their split sizes")
    _, sent, received = splits
    if (sent != received).any():
        raise Unreplayable("sent and received split sizes disagree between ranks")
    if (sent < 0).any() or (sent % width).any():
        raise Unreplayable("its split sizes are not multiples of an element")
    return tuple(tuple(row) for row in (sent // width).tolist())


def _sends(batch: CollectiveBatch, width: int) -> Matrix:
    """Elements that go from the first rank to the second, and back."""
    first = batch.participants[0].rank
    to_second, to_first = 0, 0
    for matched in batch.collectives:
        participant = matched.participants[0]
        record = participant.record
        if record.bytes < 0 or record.bytes % width:
            raise Unreplayable(_NO_SIZE.format("message size"))
        # The first sends, in a pair or in the record of one side.
        if (participant.rank == first) == (record.collective == "send"):
            to_second += record.bytes // width
        else:
            to_first += record.bytes // width
    if not to_second:  # one side's record of a receive: its sender is the first
        to_second, to_first = to_first, 0
    return (0, to_second), (to_first, 0)


# ====================
# The collectives of a run as they were launched: on all ranks that recorded them, one kernel a rank.


def batches(aligned: AlignedRun) -> tuple[list[CollectiveBatch], list[Skip]]:
    """All that can be told from the records, in order of time, and a Skip for the rest.

    Ranks are matched within their groups; where only one rank of a group is there, each of its records
    stands for the collective.
    """
    matched_collectives = [*aligned.collectives]
    skips = []
    of_rank = {rank_comm.rank: rank_comm for rank_comm in aligned.ranks}
    # Communication kernels that no record belongs to.
    loose = {
        rank: len(rank_comm.start) - len({record.kernel for record in rank_comm.records})
        for rank, rank_comm in of_rank.items()
    }
    if count := sum(loose.values()):
        rank_list = ", ".join(str(rank) for rank, missing in loose.items() if missing)
        skips.append(Skip(f"{count} communication kernel(s) of rank {rank_list}", _NO_RECORD))
    matched = {
        (participant.rank, id(participant.record))
        for collective in aligned.collectives
        for participant in collective.participants
    }
    groups: dict[Group, dict[int, list[Record]]] = {}
    for rank, rank_comm in of_rank.items():
        for record in rank_comm.records:
            of_group = groups.setdefault((record.group, record.group_ranks), {})
            of_group.setdefault(rank, []).append(record)
    for group, records in groups.items():
        if len(records) == 1:
            # Each record of the rank is a collective without the other ranks.
            ((rank, rank_records),) = records.items()
            for order, record in enumerate(rank_records):
                name = SEND_RECV if record.collective in POINT_TO_POINT else record.collective
                start, end = (
                    int(times[record.kernel]) + aligned.shift[rank]
                    for times in (of_rank[rank].start, of_rank[rank].end)
                )
                participant = Participant(rank, record, start, end)
                matched_collectives.append(MatchedCollective(name, record.group, order, (participant,)))
            continue
        if aligned.unmatched[group]:
            skips += aligned.unmatched[group]
            continue
        unmatched = {
            rank: sum((rank, id(record)) not in matched for record in rank_records)
            for rank, rank_records in records.items()
        }
        if count := sum(unmatched.values()):
            rank_list = ", ".join(str(rank) for rank, missing in sorted(unmatched.items()) if missing)
            subject = f"{count} collective(s) of group {group[0]} on rank {rank_list}"
            skips.append(Skip(subject, _UNMATCHED))
    made = []
    refused: Counter[tuple[str, str]] = Counter()
    for joined in _joined(matched_collectives):
        try:
            made.append(_batch(joined, of_rank))
        except Unreplayable as error:
            paired = joined[0].collective == SEND_RECV
            refused["send(s) with their receives" if paired else "collective(s)", str(error)] += len(joined)
    skips += [Skip(f"{count} {kind}", reason) for (kind, reason), count in refused.items()]
    return sorted(made, key=lambda batch: min(member.start for member in batch.participants)), skips


def middle(candidates: Sequence[CollectiveBatch]) -> CollectiveBatch:
    """The one of median latency, of those with most ranks."""
    most = max(len(batch.participants) for batch in candidates)
    full = [batch for batch in candidates if len(batch.participants) == most]
    latency = median_low(batch.latency_ns for batch in full)
    return next(batch for batch in full if batch.latency_ns == latency)


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


def _batch(joined: Sequence[MatchedCollective], ranks: Mapping[int, RankCommunication]) -> CollectiveBatch:
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
    return CollectiveBatch(tuple(joined), participants, tuple(names))

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
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import median, median_low
from typing import NamedTuple

import numpy as np

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
    bus_factor,
    traffic_matrices,
)
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
from tracelens.trace import Run, Scope, Trace, Union

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
    run: Run,
    *,
    ranks: int | None = None,
    scope: Scope = "all",
    during: Mapping[int, Union] | None = None,
) -> tuple[list[Script], list[Skip]]:
    """A script for each different collective: same name, size of the group, element type and sizes.

    Args:
        run: the ranks of a job; also some of them, though all_to_allv needs all of its group.
        ranks: cut groups down to their first ranks, so that fewer GPUs will do; such a script has no traced
            time to be compared with.
        scope: "all", or "linked" for work whose launch call is in the trace.
        during: by rank, ns by the clock of its trace: only collectives that run then on any rank.

    Returns:
        the scripts, those with most time first, and what could not be made, with the reason.
    """
    aligned = align_run(run, scope)
    all_batches, skips = batches(aligned)
    if during is not None:
        all_batches = [batch for batch in all_batches if _runs(batch, during, aligned)]
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
    if not all_batches and not skips and any(_on_cpu(trace) for trace in run.traces):
        skips.append(Skip("all collectives", _NO_KERNEL))
    return sorted(scripts, key=lambda script: -script.total_us), skips


def _runs(batch: CollectiveBatch, during: Mapping[int, Union], aligned: AlignedRun) -> bool:
    """Whether a collective runs on any of its ranks then."""
    for member in batch.participants:
        when = during.get(member.rank)
        own = np.array([[member.start], [member.end]]) - aligned.shift[member.rank]
        if when is not None and len(when.start) and int(when.covered(*own)[0]) > 0:
            return True
    return False


def _on_cpu(trace: Trace) -> bool:
    return any(name.startswith("c10d::") for name in trace.arrays.names)


def _script(
    traced: CollectiveMessage,
    cut: CollectiveMessage,
    same_message: Sequence[CollectiveBatch],
    devices: Sequence[str],
) -> Script:
    """The script for batches of one message, of which it runs what `cut` leaves."""
    times = [batch.latency_ns / 1e3 for batch in same_message]
    uncut, typical = cut == traced, middle(same_message)
    kept = typical.participants[: cut.ranks] if len(typical.participants) == traced.ranks else ()
    note = (
        "traced_us may include waiting" if uncut and not all(batch.complete for batch in same_message) else ""
    )
    on_cpu = _on_cpu_instead(cut)
    text = render(
        "collective.py.j2",
        {
            "kind": COLLECTIVE_KINDS[cut.kind],
            "matrix": not isinstance(cut.elements, int),
            "by_rank": uncut and bool(kept),
            "starts_known": bool(kept),
            "other_on_cpu": bool(on_cpu),
            "paired": cut.kind == SEND_RECV,
            "bytewise": cut.dtype.startswith("float8"),
            "inexact": COLLECTIVE_KINDS[cut.kind].reduces and cut.ranks > _largest_exact(cut.dtype),
        },
        about=about(_about(traced, cut, same_message, devices)),
        note=note,
        note_on_cpu="; ".join(filter(None, (note, on_cpu))),
        name=cut.name,
        ranks=cut.ranks,
        dtype=cut.dtype,
        elements=_elements(cut.elements),
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


def _about(
    traced: CollectiveMessage,
    cut: CollectiveMessage,
    same_message: Sequence[CollectiveBatch],
    devices: Sequence[str],
) -> list[str]:
    times = [batch.latency_ns / 1e3 for batch in same_message]
    names = dict.fromkeys(name.partition("(")[0] for batch in same_message for name in batch.kernels)
    groups = dict.fromkeys(batch.record.description or batch.record.group for batch in same_message)
    lines = [
        f"{traced.name}: {traced.ranks} ranks, up to {traced.bytes:,} bytes {traced.dtype} each, in "
        f"{', '.join(groups)}",
        f"{timed(times, devices)}: {', '.join(names)}",
    ]
    partial = next((batch for batch in same_message if not batch.complete), None)
    if partial:
        present = ", ".join(str(participant.rank) for participant in partial.participants)
        lines.append(_WAITING.format(present, traced.ranks))
    if cut != traced:
        lines.append(_CUT.format(traced.ranks, cut.ranks))
    assumed = [
        "a sum" if COLLECTIVE_KINDS[cut.kind].reduces else "",
        "the first rank as the root" if cut.kind in ("broadcast", "reduce", "gather", "scatter") else "",
        "one tensor of all the bytes" if "coalesced" in cut.name else "",
    ]
    if any(assumed):
        lines.append(f"Assumed, not recorded: {', '.join(filter(None, assumed))}.")
    return lines


def _on_cpu_instead(message: CollectiveMessage) -> str:
    """What gloo runs in the place of the traced collective; "" if it runs the same."""
    if message.dtype.startswith("float8"):
        return f"gloo lacks {message.dtype}: sent as bytes"
    return COLLECTIVE_KINDS[message.kind].instead[1]


def _row(values: Sequence[float]) -> SourceText:
    """Source of a list of times in us."""
    text = literal([round(value, 1) for value in values])
    return SourceText(
        "\n".join(textwrap.wrap(text, WIDTH - len("TRACED_RANK_US = "), subsequent_indent="    "))
    )


def _elements(elements: int | Matrix) -> SourceText:
    """Source of COUNT: each row of a matrix begins a line."""
    if isinstance(elements, int):
        return SourceText(literal(elements))
    indent = " " * len("COUNT = [")
    wrap = textwrap.TextWrapper(WIDTH, initial_indent=indent, subsequent_indent=f"{indent} ")
    rows = [line for row in elements for line in wrap.wrap(f"{literal(list(row))},")]
    return SourceText("\n".join(rows).strip().removesuffix(",").join("[]"))


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
    dtype = _dtype(record.dtype)
    if kind == SEND_RECV:
        return _nonempty(CollectiveMessage(name, kind, ranks, dtype, _sends(batch, element_bytes(dtype))))
    sizes = {(participant.record.sent, participant.record.received) for participant in batch.participants}
    split = any(
        participant.record.sent_to or participant.record.received_from for participant in batch.participants
    )
    if name.endswith("v") or split or (kind == "all_to_all" and len(sizes) > 1):
        return _nonempty(
            CollectiveMessage(name, "all_to_allv", ranks, dtype, _matrix(batch, element_bytes(dtype)))
        )
    return _nonempty(
        CollectiveMessage(name, kind, ranks, dtype, _piece(kind, ranks, sizes, element_bytes(dtype)))
    )


def _nonempty(candidate: CollectiveMessage) -> CollectiveMessage:
    if candidate.bytes <= 0:
        raise Unreplayable("moves no data")
    return candidate


def _dtype(name: str) -> str:
    """Torch's name; a truth value is a byte to libraries."""
    dtype = torch_dtype(name)
    if not dtype or dtype.startswith("complex"):
        raise Unreplayable(f"element type {name[:40]!r} is not supported for messages")
    return "uint8" if dtype == "bool" else dtype


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
        raise Unreplayable(f"split sizes known for {_who(batch)}; pass all traces")
    if record.size > _LISTS:
        raise Unreplayable(
            f"split sizes of {record.size} ranks: the profiler truncates lists after {_LISTS} entries"
        )
    (matched,) = batch.collectives
    participants = tuple(_filled(participant, record.size) for participant in matched.participants)
    splits = traffic_matrices(matched._replace(participants=participants))
    if splits is None:
        raise Unreplayable("not all ranks recorded their split sizes")
    _, sent, received = splits
    if (sent != received).any():
        raise Unreplayable("sent and received split sizes disagree between ranks")
    if (sent < 0).any() or (sent % width).any():
        raise Unreplayable("its split sizes are not multiples of an element")
    return tuple(tuple(row) for row in (sent // width).tolist())


def _filled(participant: Participant, ranks: int) -> Participant:
    """With parts of nothing where nothing is sent or received at all: the record leaves them out."""
    record, nothing = participant.record, (0,) * ranks
    if not record.sent and not record.sent_to:
        record = record._replace(sent_to=nothing)
    if not record.received and not record.received_from:
        record = record._replace(received_from=nothing)
    return participant._replace(record=record)


def _sends(batch: CollectiveBatch, width: int) -> Matrix:
    """Elements that go from the first rank to the second, and back."""
    first = batch.participants[0].rank
    to_second, to_first = 0, 0
    for matched in batch.collectives:
        record = matched.participants[0].record
        if record.bytes < 0 or record.bytes % width:
            raise Unreplayable(_NO_SIZE.format("message size"))
        if _from(matched, first):
            to_second += record.bytes // width
        else:
            to_first += record.bytes // width
    if not to_second:  # one side's record of a receive: its sender is the first
        to_second, to_first = to_first, 0
    return (0, to_second), (to_first, 0)


def _from(matched: MatchedCollective, rank: int) -> bool:
    """Whether a rank sends, in a pair or in the record of one side."""
    participant = matched.participants[0]
    return (participant.rank == rank) == (participant.record.collective == "send")


def _who(batch: CollectiveBatch) -> str:
    present = [participant.rank for participant in batch.participants]
    missing: Sequence[int] = [rank for rank in batch.record.group_ranks if rank not in present]
    text = f"{len(present)} of {batch.record.size} ranks"
    shown = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
    return f"{text} (missing: {shown})" if missing else text


# ====================
# The collectives of a run as they were launched: on all ranks that recorded them, one kernel a rank.


def batches(aligned: AlignedRun) -> tuple[list[CollectiveBatch], list[Skip]]:
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


def middle(candidates: Sequence[CollectiveBatch]) -> CollectiveBatch:
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

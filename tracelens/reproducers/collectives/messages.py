"""What a collective moves: the part of it that a script needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tracelens.analysis.comm import SEND_RECV, MatchedCollective, Participant, traffic_matrices
from tracelens.dtypes import element_bytes, torch_dtype
from tracelens.reproducers.collectives.batches import Batch
from tracelens.reproducers.inputs import Unreplayable
from tracelens.reproducers.scripts import COLLECTIVE_KINDS, NAMES

Matrix = tuple[tuple[int, ...], ...]

_NO_SIZE = "the trace has no {}; recent torch records it per collective"
_LISTS = 30
"""Entries of a list that the profiler writes; it cuts off the rest."""


class Message(NamedTuple):
    """What tells collectives apart.

    Attributes:
        name: as recorded.
        kind: of COLLECTIVE_KINDS.
        ranks: of the group.
        dtype: torch's name of the element type.
        elements: of one rank's piece, or from rank (row) to rank.
    """

    name: str
    kind: str
    ranks: int
    dtype: str
    elements: int | Matrix

    @property
    def bytes(self) -> int:
        """Size of the largest message of a rank, as nccl-tests count it."""
        if isinstance(self.elements, tuple):
            elements = max(*map(sum, self.elements), *map(sum, zip(*self.elements, strict=True)))
        else:
            pieces = COLLECTIVE_KINDS[self.kind].sent + COLLECTIVE_KINDS[self.kind].received
            elements = self.elements * (self.ranks if "RANKS" in pieces else 1)
        return elements * element_bytes(self.dtype)

    def cut(self, ranks: int) -> Message:
        if self.ranks <= ranks:
            return self
        elements = self.elements
        if isinstance(elements, tuple):
            elements = tuple(row[:ranks] for row in elements[:ranks])
        return self._replace(ranks=ranks, elements=elements)


def message(batch: Batch) -> Message:
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
        return _nonempty(Message(name, kind, ranks, dtype, _sends(batch, element_bytes(dtype))))
    sizes = {(participant.record.sent, participant.record.received) for participant in batch.participants}
    split = any(
        participant.record.sent_to or participant.record.received_from for participant in batch.participants
    )
    if name.endswith("v") or split or (kind == "all_to_all" and len(sizes) > 1):
        return _nonempty(Message(name, "all_to_allv", ranks, dtype, _matrix(batch, element_bytes(dtype))))
    return _nonempty(Message(name, kind, ranks, dtype, _piece(kind, ranks, sizes, element_bytes(dtype))))


def _nonempty(candidate: Message) -> Message:
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


def _matrix(batch: Batch, width: int) -> Matrix:
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


def _sends(batch: Batch, width: int) -> Matrix:
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


def _who(batch: Batch) -> str:
    present = [participant.rank for participant in batch.participants]
    missing: Sequence[int] = [rank for rank in batch.record.group_ranks if rank not in present]
    text = f"{len(present)} of {batch.record.size} ranks"
    shown = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
    return f"{text} (missing: {shown})" if missing else text

"""What a collective moves: the part of it that a script needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tracelens.analysis.comm import SEND_RECV, MatchedCollective, Participant, traffic_matrices
from tracelens.reproducers.collectives.batches import Batch
from tracelens.reproducers.inputs import WIDTHS, Unreplayable, torch_dtype
from tracelens.reproducers.scripts import COLLECTIVE_KINDS, NAMES

Matrix = tuple[tuple[int, ...], ...]

_NO_SIZE = "the trace has no {}; recent torch records it with each collective"
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
        return elements * _width(self.dtype)

    def cut(self, ranks: int) -> Message:
        """The same among the first ranks of the group."""
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
    name, record = batch.instances[0].collective, batch.record
    if name not in NAMES:
        moves = name in ("barrier", "wait", "coalesced")
        raise Unreplayable("it moves no data of its own" if moves else "not a collective that is known here")
    kind, ranks = NAMES[name], 2 if name == SEND_RECV else record.size
    if ranks < 1:
        raise Unreplayable(_NO_SIZE.format("size of its group"))
    if ranks == 1:
        raise Unreplayable("a group of one rank: nothing leaves the GPU")
    dtype = _dtype(record.dtype)
    if kind == SEND_RECV:
        return _some(Message(name, kind, ranks, dtype, _sends(batch, _width(dtype))))
    sizes = {(member.record.sent, member.record.received) for member in batch.members}
    split = any(member.record.sent_to or member.record.received_from for member in batch.members)
    if name.endswith("v") or split or (kind == "all_to_all" and len(sizes) > 1):
        return _some(Message(name, "all_to_allv", ranks, dtype, _matrix(batch, _width(dtype))))
    return _some(Message(name, kind, ranks, dtype, _piece(kind, ranks, sizes, _width(dtype))))


def _some(found: Message) -> Message:
    if found.bytes <= 0:
        raise Unreplayable("it moves no data")
    return found


def _dtype(name: str) -> str:
    """Torch's name; a truth value is a byte to libraries."""
    found = torch_dtype(name)
    if not found or found.startswith("complex"):
        raise Unreplayable(f"element type {name[:40]!r} is not one that messages can be made of")
    return "uint8" if found == "bool" else found


def _width(dtype: str) -> int:
    return WIDTHS[dtype]


def _piece(kind: str, ranks: int, sizes: set[tuple[int, int]], width: int) -> int:
    """Elements of one rank's piece, from the (sent, received) bytes that its ranks recorded."""
    if len(sizes) > 1:
        raise Unreplayable("its ranks recorded different sizes, and no split sizes")
    ((sent, received),) = sizes
    large, small = max(sent, received), min(sent, received)
    if large < 0:
        raise Unreplayable(_NO_SIZE.format("message size"))
    if "RANKS" not in COLLECTIVE_KINDS[kind].sent + COLLECTIVE_KINDS[kind].received:
        whole, pieces = large, 1
    elif kind == "all_to_all" or small < 0:
        whole, pieces = large, ranks
    else:  # one side is a piece, the other all of them
        whole, pieces = small * ranks, ranks
        if whole != large:
            raise Unreplayable(f"{small:,} bytes of a rank and {large:,} of all {ranks} do not go together")
    if whole % (pieces * width):
        raise Unreplayable(f"{whole:,} bytes do not divide among {ranks} ranks")
    return whole // (pieces * width)


def _matrix(batch: Batch, width: int) -> Matrix:
    """Elements from rank (row) to rank."""
    record = batch.record
    if not batch.whole:
        raise Unreplayable(f"what each rank sends to each other is known of {_who(batch)}; pass all traces")
    if record.size > _LISTS:
        raise Unreplayable(
            f"split sizes of {record.size} ranks: profilers cut lists off after {_LISTS} entries"
        )
    (instance,) = batch.instances
    members = tuple(_filled(member, record.size) for member in instance.participants)
    found = traffic_matrices(instance._replace(participants=members))
    if found is None:
        raise Unreplayable("not all ranks recorded their split sizes")
    _, sent, received = found
    if (sent != received).any():
        raise Unreplayable("what one rank says it sent is not what the other says it received")
    if (sent < 0).any() or (sent % width).any():
        raise Unreplayable("its split sizes are no numbers of elements")
    return tuple(tuple(row) for row in (sent // width).tolist())


def _filled(member: Participant, ranks: int) -> Participant:
    """With parts of nothing where nothing is sent or received at all: the record leaves them out."""
    record, nothing = member.record, (0,) * ranks
    if not record.sent and not record.sent_to:
        record = record._replace(sent_to=nothing)
    if not record.received and not record.received_from:
        record = record._replace(received_from=nothing)
    return member._replace(record=record)


def _sends(batch: Batch, width: int) -> Matrix:
    """Elements that go from the first rank to the second, and back."""
    first = batch.members[0].rank
    there, back = 0, 0
    for instance in batch.instances:
        record = instance.participants[0].record
        if record.bytes < 0 or record.bytes % width:
            raise Unreplayable(_NO_SIZE.format("message size"))
        if _from(instance, first):
            there += record.bytes // width
        else:
            back += record.bytes // width
    if not there:  # one side's record of a receive: its sender is the first
        there, back = back, 0
    return (0, there), (back, 0)


def _from(instance: MatchedCollective, rank: int) -> bool:
    """Whether a rank sends, in a pair or in the record of one side."""
    member = instance.participants[0]
    return (member.rank == rank) == (member.record.collective == "send")


def _who(batch: Batch) -> str:
    there = [member.rank for member in batch.members]
    missing: Sequence[int] = [rank for rank in batch.record.group_ranks if rank not in there]
    text = f"{len(there)} of {batch.record.size} ranks"
    few = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
    return f"{text} (missing: {few})" if missing else text

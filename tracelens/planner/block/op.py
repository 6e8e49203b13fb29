"""An op of a block: what it allocates and saves, computes and moves, sends, and trains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

FLOAT32, INT64 = 4, 8
"""Bytes of an element."""

Gradient = Literal["new", "same", "saved", "none"]
"""Gradients of an op's inputs: new tensors, views of the gradient of its output, its saved tensor changed in
place, or none."""

Collective = Literal[
    "all_to_all", "all_gather", "reduce_scatter", "all_reduce", "broadcast", "send", "recv", "deepep"
]

TRANSPOSED: dict[Collective, Collective] = {
    "all_to_all": "all_to_all",
    "all_gather": "reduce_scatter",
    "reduce_scatter": "all_gather",
    "deepep": "deepep",
}
"""Collective of the forward to that of its gradients."""


class Storage:
    """Memory of a tensor and its views.

    Attributes:
        bytes: its size.
        component: it counts as while it is kept.
        last: index of the last op of the forward that reads it.
        saved: number of ops that save it.
    """

    __slots__ = ("bytes", "component", "last", "saved")

    def __init__(self, size: int, component: str, last: int) -> None:
        self.bytes, self.component, self.last, self.saved = size, component, last, 0


class Value:
    """A tensor: its storage, and the bytes of its gradient."""

    __slots__ = ("bytes", "storage")

    def __init__(self, size: int, storage: Storage) -> None:
        self.bytes, self.storage = size, storage


class Load(NamedTuple):
    """FLOPs of GEMMs and attention, and bytes, of one pass of an op."""

    flops: int = 0
    bytes: int = 0


class Kernel(NamedTuple):
    """What an op computes and moves, at least.

    Attributes:
        kind: only GEMMs and attention have FLOPs.
        forward: of a micro-batch.
        backward: likewise.
        shape: of a GEMM: m rows in all, k, n, and the number of (k, n) matrices.
        dtype: of its operands.
    """

    kind: Literal["memory", "gemm", "attention"] = "memory"
    forward: Load = Load()
    backward: Load = Load()
    shape: tuple[int, ...] = ()
    dtype: str = ""


class Exchange(NamedTuple):
    """One message of an op, from the view of one rank.

    Attributes:
        what: the payload.
        collective: its kind.
        group: name of its process group.
        sent: bytes of the send buffer.
        received: bytes of the receive buffer.
    """

    what: str
    collective: Collective
    group: str
    sent: int
    received: int

    @property
    def transposed(self) -> Exchange:
        """The message of the gradient."""
        what, collective, group, sent, received = self
        return Exchange(what, TRANSPOSED[collective], group, received, sent)


class Messages(NamedTuple):
    """Messages of an op in its forward, and of its gradients in its backward."""

    forward: Sequence[Exchange] = ()
    backward: Sequence[Exchange] = ()


class Weight(NamedTuple):
    """A parameter: which ranks have the same (a key of REPLICA_GROUPS), and what it counts as."""

    replicas: str
    component: str


class Op(NamedTuple):
    """One op; see `Tape.op`.

    Attributes:
        scope: annotation around it, without the layer.
        made: tensors that it allocates, other than temporary ones.
        outputs: with gradients.
        saves: for its backward.
        inputs: with gradients.
        gradient: of these.
        weights: bytes of its weight gradients, and so of its weights.
        scratch: temporary bytes of its forward.
        backward_scratch: temporary bytes of its backward.
        waits: whether it waits for other ranks, in forward and backward.
        saves_last: whether it saves only after it ran.
        kernel: what it computes and moves.
        messages: that it sends and receives.
        weight: its parameter.
    """

    scope: str
    made: tuple[Storage, ...] = ()
    outputs: tuple[Value, ...] = ()
    saves: tuple[Storage, ...] = ()
    inputs: tuple[Value, ...] = ()
    gradient: Gradient = "new"
    weights: int = 0
    scratch: int = 0
    backward_scratch: int = 0
    waits: bool = False
    saves_last: bool = False
    kernel: Kernel = Kernel()
    messages: Messages = Messages()
    weight: Weight | None = None


def recomputed(ops: Sequence[Op]) -> int:
    """Number of ops that recompute runs: it stops once it has all that the backward needs.

    A GEMM saves its operands before it runs, so that the last one need not run again.
    """
    last = max(number for number, op in enumerate(ops) if op.saves)
    stops_before = ops[last].kernel.kind == "gemm" and not ops[last].saves_last
    return last if stops_before else last + 1


def both_ways(what: str, collective: Collective, group: str, sent: int, received: int) -> Messages:
    """A message whose gradient travels in the opposite direction."""
    message = Exchange(what, collective, group, sent, received)
    return Messages((message,), (message.transposed,))


def one_way(what: str, collective: Collective, group: str, sent: int, received: int) -> Messages:
    """A message without a gradient."""
    return Messages((Exchange(what, collective, group, sent, received),))


def moves(forward: int, backward: int) -> Kernel:
    """A kernel that reads and writes this many bytes."""
    return Kernel("memory", Load(0, forward), Load(0, backward))


def gemm(m: int, k: int, n: int, matrices: int, element: int, dtype: str) -> Kernel:
    """A GEMM of m rows, each with one of several (k, n) weight matrices; `element` in bytes.

    It takes 2mnk FLOPs, and as many for the gradient of each operand. Each operand is read once and the
    result written once. The backward reads output gradient, input and weights, writes the input gradient, and
    accumulates the weight gradient.
    """
    weights = matrices * k * n
    forward = Load(2 * m * k * n, (m * k + weights + m * n) * element)
    backward = Load(4 * m * k * n, (2 * m * k + 3 * weights + 2 * m * n) * element)
    return Kernel("gemm", forward, backward, (m, k, n, matrices), dtype)

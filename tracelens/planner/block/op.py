"""An op of the model: what it allocates and saves, computes and moves, sends, and trains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

FP8, FLOAT32, INT64 = 1, 4, 8
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


class Gemm(NamedTuple):
    """A GEMM of m rows with each of several (k, n) matrices, for an output or a weight gradient."""

    m: float
    k: int
    n: int
    matrices: int = 1
    kind: Literal["output", "weight"] = "output"

    @property
    def flops(self) -> float:
        return 2 * self.m * self.k * self.n * self.matrices


class Attention(NamedTuple):
    """Causal attention over sequences of `seq` keys."""

    flops: int
    seq: int
    query_dim: int
    value_dim: int
    is_backward: bool


class Traffic(NamedTuple):
    """Bytes that are moved in a pattern: a name of `tracelens.devices.Bandwidth`."""

    bytes: int
    pattern: str


class Load(NamedTuple):
    """One pass of a kernel.

    Attributes:
        flops: of GEMMs and attention; other ops do not count.
        bytes: read and written at least.
        kernels: that have the FLOPs, or move the bytes in another pattern than elementwise.
        dtype: of the FLOPs; empty for the type of the activations.
    """

    flops: int = 0
    bytes: int = 0
    kernels: tuple[Gemm | Attention | Traffic, ...] = ()
    dtype: str = ""


class Kernel(NamedTuple):
    """What an op computes and moves, in a forward and its backward.

    "eager" kernels move what torch's ops do, run one by one, beyond what one fused kernel would.
    """

    kind: Literal["memory", "gemm", "attention", "eager"]
    forward: Load
    backward: Load


class Exchange(NamedTuple):
    """A message of an op from the view of one rank; see `planner.expected.Message`."""

    what: str
    collective: Collective
    group: str
    sent: int
    received: int

    @property
    def transposed(self) -> Exchange:
        """The message of the gradient."""
        return self._replace(collective=TRANSPOSED[self.collective], sent=self.received, received=self.sent)


class Messages(NamedTuple):
    """Messages of an op in its forward, and of its gradients in its backward."""

    forward: Sequence[Exchange] = ()
    backward: Sequence[Exchange] = ()


class Weight(NamedTuple):
    """A parameter: which ranks have the same (a key of REPLICA_GROUPS), and what it counts as."""

    replicas: str
    component: str


class Op(NamedTuple):
    """One op, in the annotation `scope`; see `Tape.op` for its fields.

    `made` are the tensors that it allocates, `outputs` those with gradients.
    """

    scope: str
    made: Sequence[Storage] = ()
    outputs: Sequence[Value] = ()
    saves: Sequence[Storage] = ()
    inputs: Sequence[Value] = ()
    gradient: Gradient = "new"
    weights: int = 0
    scratch: int = 0
    backward_scratch: int = 0
    waits: bool = False
    saves_last: bool = False
    kernels: Sequence[Kernel] = ()
    messages: Messages = Messages()
    weight: Weight | None = None


def recomputed(ops: Sequence[Op]) -> int:
    """Number of ops that recompute runs: it stops once it has all that the backward needs.

    A GEMM saves its operands before it runs, so that the last one need not run again.
    """
    last = max(number for number, op in enumerate(ops) if op.saves)
    is_gemm = any(kernel.kind == "gemm" for kernel in ops[last].kernels)
    return last if is_gemm and not ops[last].saves_last else last + 1


def both_ways(what: str, collective: Collective, group: str, sent: int, received: int) -> Messages:
    """A message whose gradient travels in the opposite direction."""
    message = Exchange(what, collective, group, sent, received)
    return Messages((message,), (message.transposed,))


def one_way(what: str, collective: Collective, group: str, sent: int, received: int) -> Messages:
    """A message without a gradient."""
    return Messages((Exchange(what, collective, group, sent, received),))


def moves(forward: int, backward: int) -> tuple[Kernel, ...]:
    """A kernel that reads and writes this many bytes; none for none."""
    return (Kernel("memory", Load(0, forward), Load(0, backward)),) if forward else ()


def eager(forward: int, backward: int, pattern: str, backward_pattern: str = "") -> tuple[Kernel, ...]:
    """More bytes that separate ops read and write, in patterns of memory traffic."""
    passes = ((forward, pattern), (backward, backward_pattern or pattern))
    return (
        Kernel("eager", *(Load(0, size, (Traffic(size, name),) if size else ()) for size, name in passes)),
    )

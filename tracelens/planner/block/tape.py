"""The tape: ops of a stretch of the model in execution order, and the walk that autograd does over them.

An `Op` says what it allocates and saves, computes and moves, sends, and trains. A `Tape` records ops; the
recorded stretch is a `Section`. `walk_forward` and `walk_backward` run a section as autograd does and tell a
`Visitor` what is allocated and freed. All that memory is about follows from this one walk: `Section.memory`
(peaks by component, for every framework), and the event stream of `planner.memory.allocator`.

A tensor of the forward lives until its last reader has run, a saved one until the backward of the last op
that saved it. A gradient lives from its first producer to the backward of its tensor's own op; gradients from
several readers accumulate in place if nothing else refers to the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, Protocol

FP8, INT32, FLOAT32, INT64 = 1, 4, 4, 8
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

Held = dict[str, int]
"""Bytes by component."""

TEMPORARY = "temporary"
"""Component of gradients in flight, and of scratch memory of an op."""

_ROWS = ("activations.dispatch", "activations.experts")
"""Components whose tensors have one row per token and expert."""


class Storage:
    """Memory of a tensor and its views."""

    __slots__ = ("bytes", "component", "last", "saved")

    def __init__(self, size: int, component: str, last: int) -> None:
        self.bytes = size
        self.component = component  # it counts as while it is kept
        self.last = last  # index of the last op of the forward that reads it
        self.saved = 0  # number of ops that save it


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


class AttentionPass(NamedTuple):
    """Causal attention over sequences of `seq` keys, forward or backward."""

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
    """One pass of a kernel."""

    flops: int = 0  # of GEMMs and attention; other ops do not count
    bytes: int = 0  # read and written at least
    # that have the FLOPs, or move the bytes in another pattern than elementwise
    kernels: tuple[Gemm | AttentionPass | Traffic, ...] = ()
    dtype: str = ""  # of the FLOPs; empty for the type of the activations


class Kernel(NamedTuple):
    """What an op computes and moves, in a forward and its backward.

    "eager" kernels move what torch's ops do, run one by one, beyond what one fused kernel would.
    """

    kind: Literal["memory", "gemm", "attention", "eager"]
    forward: Load
    backward: Load


class Exchange(NamedTuple):
    """A message of one rank: what a collective, a send or a receive moves. All of the planner has this one.

    Bytes are those of the buffers passed to the collective: what a rank sends to itself counts too.
    """

    what: str  # the payload
    collective: Collective
    group: str  # name of its process group
    sent: float  # bytes of the send buffer; a whole number, but where it is an expected value
    received: float  # bytes of the receive buffer

    @property
    def transposed(self) -> Exchange:
        """The message of the gradient."""
        return self._replace(collective=TRANSPOSED[self.collective], sent=self.received, received=self.sent)


class PassMessages(NamedTuple):
    """Messages of an op in its forward, and of its gradients in its backward."""

    forward: Sequence[Exchange] = ()
    backward: Sequence[Exchange] = ()


_SILENT = PassMessages()


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
    messages: PassMessages = _SILENT
    weight: Weight | None = None


def recomputed(ops: Sequence[Op]) -> int:
    """Number of ops that recompute runs: it stops once it has all that the backward needs.

    A GEMM saves its operands before it runs, so that the last one need not run again.
    """
    last = max(number for number, op in enumerate(ops) if op.saves)
    is_gemm = any(kernel.kind == "gemm" for kernel in ops[last].kernels)
    return last if is_gemm and not ops[last].saves_last else last + 1


def both_ways(what: str, collective: Collective, group: str, sent: int, received: int) -> PassMessages:
    """A message whose gradient travels in the opposite direction."""
    message = Exchange(what, collective, group, sent, received)
    return PassMessages((message,), (message.transposed,))


def one_way(what: str, collective: Collective, group: str, sent: int, received: int) -> PassMessages:
    """A message without a gradient."""
    return PassMessages((Exchange(what, collective, group, sent, received),))


def moves(forward: int, backward: int) -> tuple[Kernel, ...]:
    """A kernel that reads and writes this many bytes; none for none."""
    return (Kernel("memory", Load(0, forward), Load(0, backward)),) if forward else ()


def eager(forward: int, backward: int, pattern: str, backward_pattern: str = "") -> tuple[Kernel, ...]:
    """More bytes that separate ops read and write, in patterns of memory traffic."""
    passes = ((forward, pattern), (backward, backward_pattern or pattern))
    return (
        Kernel("eager", *(Load(0, size, (Traffic(size, name),) if size else ()) for size, name in passes)),
    )


class Tape:
    """Ops of a stretch of the model; their tensors count as `component`, unless inside `part`."""

    def __init__(self, component: str, scope: str = "") -> None:
        self.component, self.scope = component, scope
        self.ops: list[Op] = []

    @contextmanager
    def part(self, component: str, scope: str = "") -> Iterator[None]:
        """Tensors of ops inside count as another component, and the ops lie in another annotation if any."""
        outer = self.component, self.scope
        self.component, self.scope = component, scope or self.scope
        try:
            yield
        finally:
            self.component, self.scope = outer

    def input(self, size: int) -> Value:
        """A tensor that exists before the first op."""
        return Value(size, Storage(size, self.component, -1))

    def op(
        self,
        inputs: Sequence[Value],
        size: int,
        *,
        saves: Sequence[Value] = (),
        reads: Sequence[Value] = (),
        extra: int = 0,
        keep: bool = False,
        gradient: Gradient = "new",
        weights: int = 0,
        scratch: int = 0,
        backward_scratch: int = 0,
        of: Value | None = None,
        waits: bool = False,
        saves_last: bool = False,
        kernels: Sequence[Kernel] = (),
        messages: PassMessages = _SILENT,
        weight: Weight | None = None,
    ) -> Value:
        """An op with one output.

        Args:
            inputs: tensors that it reads and differentiates.
            size: bytes of the output.
            saves: existing tensors that it saves for its backward.
            reads: other tensors that it reads.
            extra: bytes that it allocates and saves besides.
            keep: whether it saves its output.
            gradient: of its inputs.
            weights: bytes of weight gradients: allocated, accumulated into their buffer, and freed.
            scratch: temporary bytes of its forward.
            backward_scratch: temporary bytes of its backward.
            of: tensor that the output is a view of.
            waits: whether it waits for other ranks, in forward and backward.
            saves_last: whether it saves only after it ran, as custom autograd functions do.
            kernels: FLOPs and bytes; nothing where a kernel before or after it can do its work.
            messages: that it sends and receives.
            weight: the parameter of `weights`.
        """
        now = len(self.ops)
        storage = Storage(size, self.component, now) if of is None else of.storage
        output = Value(size, storage)
        made = [] if of is not None else [storage]
        saved = [value.storage for value in saves] + [storage] * keep
        if extra:
            made.append(Storage(extra, self.component, now))
            saved.append(made[-1])
        for value in (*inputs, *saves, *reads, output):
            value.storage.last = now
        for kept in saved:
            kept.saved += 1
        self.ops.append(
            Op(
                self.scope,
                made=made,
                outputs=(output,),
                saves=saved,
                inputs=inputs,
                gradient=gradient,
                weights=weights,
                scratch=scratch,
                backward_scratch=backward_scratch,
                waits=waits,
                saves_last=saves_last,
                kernels=kernels,
                messages=messages,
                weight=weight,
            )
        )
        return output

    def collective(self, x: Value, size: int, what: str, collective: Collective, group: str) -> Value:
        """A collective that sends one tensor and receives another; their gradients travel back."""
        messages = both_ways(what, collective, group, x.bytes, size)
        return self.op([x], size, waits=True, messages=messages)

    def view(self, x: Value, size: int | None = None) -> Value:
        """A view of a tensor; the gradient of a partial view is a new tensor as large as the whole."""
        if size is None or size == x.bytes:
            return self.op([x], x.bytes, gradient="same", of=x)
        return self.op([x], size, of=x)

    def split(self, x: Value, sizes: Sequence[int]) -> list[Value]:
        """Parts of a tensor as views; their gradients are concatenated to a new tensor."""
        parts = [Value(size, x.storage) for size in sizes]
        x.storage.last = len(self.ops)
        self.ops.append(Op(self.scope, outputs=parts, inputs=[x]))
        return parts

    def unbind(self, sizes: Sequence[int], weight: Weight | None = None) -> list[Value]:
        """A parameter in parts, whose gradients are collected and stacked before they accumulate."""
        parts = [Value(size, Storage(0, self.component, -1)) for size in sizes]
        self.ops.append(Op(self.scope, outputs=parts, gradient="none", weights=sum(sizes), weight=weight))
        return parts

    def touch(self, *values: Value) -> None:
        """Keep these alive until the latest op has run."""
        for value in values:
            value.storage.last = len(self.ops) - 1

    def section(self, x: Value, y: Value, padding: float = 0.0) -> Section:
        """The recorded ops, from input to output; see `Section`."""
        y.storage.last = len(self.ops)  # it outlives them
        return Section(self.ops, x, y, padding)


@dataclass(frozen=True, eq=False)
class Section:
    """Ops in execution order, from the input of the first to the output of the last."""

    ops: Sequence[Op]
    input: Value
    output: Value
    padding: float = 0.0  # share of the rows of experts that holds no token

    @cached_property
    def memory(self) -> SectionMemory:
        """What it allocates and keeps."""
        x, y = self.input, self.output
        kept: Held = {}
        storages = {id(x.storage): x.storage}
        storages |= {id(storage): storage for op in self.ops for storage in op.saves}
        for storage in storages.values():
            kept[storage.component] = kept.get(storage.component, 0) + storage.bytes
        forward, unsaved = (_PeakMeter({x.storage.component: x.bytes}) for _ in range(2))
        walk_forward(self, forward)
        walk_forward(self, unsaved, save=False)
        backward, gradient = _PeakMeter(kept), GradientStorage(y.bytes)
        backward.allocate(gradient)
        backward.run()
        walk_backward(self, gradient, backward)
        memory = SectionMemory(
            input_bytes=x.bytes,
            output=y.bytes,
            kept=kept,
            forward=forward.done(),
            unsaved=unsaved.done(),
            backward=backward.done(),
        )
        return memory.padded(self.padding) if self.padding else memory


class GradientStorage:
    """Memory of a gradient, and the number of tensors that refer to it."""

    __slots__ = ("bytes", "holders")

    def __init__(self, size: int) -> None:
        self.bytes, self.holders = size, 0


class Visitor(Protocol):
    """What a walk over a section tells, in order."""

    def allocate(self, tensor: Storage | GradientStorage, kept: bool = False) -> None:
        """A tensor comes into being; `kept`: it stays for the backward."""

    def free(self, tensor: Storage | GradientStorage, kept: bool = False) -> None:
        """A tensor goes; `kept`: it was there for the backward."""

    def run(self, *scratch: int) -> None:
        """An op runs, with this many temporary bytes."""

    def wait(self) -> None:
        """The pass waits for other ranks."""


def walk_forward(section: Section, visitor: Visitor, save: bool = True) -> None:
    """Run the ops: tensors are freed after their last reader, unless they are saved."""
    ends: dict[int, list[Storage]] = {}
    for number, op in enumerate(section.ops):
        for storage in op.made:
            kept = save and storage.saved > 0
            visitor.allocate(storage, kept)
            if not kept:
                ends.setdefault(storage.last, []).append(storage)
        visitor.run(op.scratch)
        if op.waits:
            visitor.wait()
        for storage in ends.pop(number, ()):
            visitor.free(storage)


def walk_backward(section: Section, gradient: GradientStorage, visitor: Visitor) -> GradientStorage | None:
    """Run the backward of the ops from the gradient of the output; returns that of the input, if any."""
    gradients: dict[int, GradientStorage] = {}  # in flight, by the id of their tensor
    saves: dict[int, int] = {}  # storage to the ops that still need it

    def drop(gradient: GradientStorage) -> None:
        gradient.holders -= 1
        if not gradient.holders:
            visitor.free(gradient)

    def give(value: Value, gradient: GradientStorage) -> None:
        """A gradient arrives and accumulates with an earlier one of the same tensor."""
        gradient.holders += 1
        earlier = gradients.get(id(value))
        if earlier is None:
            gradients[id(value)] = gradient
        elif earlier.holders == 1:
            drop(gradient)
        else:
            total_gradient = GradientStorage(value.bytes)
            total_gradient.holders = 1
            visitor.allocate(total_gradient)
            visitor.run()
            drop(gradient)
            drop(earlier)
            gradients[id(value)] = total_gradient

    def release(op: Op) -> None:
        """Free the saved tensors of an op, unless another op still needs them."""
        for storage in op.saves:
            saves[id(storage)] = remaining = saves.get(id(storage), storage.saved) - 1
            if not remaining:
                visitor.free(storage, kept=True)

    give(section.output, gradient)
    for op in reversed(section.ops):
        arrived = [gradients.pop(id(output)) for output in op.outputs if id(output) in gradients]
        if op.gradient == "saved":
            release(op)
        if arrived:  # without a gradient of its outputs, an op has no backward
            if op.gradient == "same":
                for value in op.inputs:
                    give(value, arrived[0])
            else:
                made = [GradientStorage(value.bytes) for value in op.inputs] * (op.gradient != "none")
                for input_gradient in made:
                    visitor.allocate(input_gradient)
                visitor.run(op.backward_scratch, op.weights)
                for value, input_gradient in zip(op.inputs, made, strict=False):
                    give(value, input_gradient)
            if op.waits:
                visitor.wait()
        for output_gradient in arrived:
            drop(output_gradient)
        if op.gradient != "saved":
            release(op)
    return gradients.get(id(section.input))


class Piece(NamedTuple):
    """Part of a pass between two waits for other ranks: memory at its peak and at its end."""

    peak: Held
    end: Held


class SectionMemory(NamedTuple):
    """Memory of a section, with its input; its output counts only while it runs."""

    input_bytes: int
    output: int  # bytes of its output, and of the gradient of that
    kept: Held  # between forward and backward, its input included
    forward: tuple[Piece, ...]
    unsaved: tuple[Piece, ...]  # of a forward that saves nothing
    backward: tuple[Piece, ...]  # with what is still kept and the gradient of the output

    def padded(self, share: float) -> SectionMemory:
        """Count this share of the rows, which holds no token, as a component of its own."""

        def split(held: Held) -> Held:
            empty = {name: round(held.get(name, 0) * share) for name in _ROWS}
            lower = {name: -size for name, size in empty.items()}
            return added(added(held, lower), {"buffers.worst_case": sum(empty.values())})

        forward, backward = (
            tuple(Piece(split(piece.peak), split(piece.end)) for piece in pieces)
            for pieces in (self.forward, self.backward)
        )
        return self._replace(kept=split(self.kept), forward=forward, backward=backward)


def total(held: Held) -> int:
    """Sum over components."""
    return sum(held.values())


def added(a: Held, b: Held) -> Held:
    """Sums by component."""
    sums = a.copy()
    for name, size in b.items():
        sums[name] = sums.get(name, 0) + size
    return sums


class _PeakMeter:
    """A visitor that measures memory: kept by component, live in total, and its peak since the last wait."""

    def __init__(self, kept: Held) -> None:
        self.kept = kept.copy()
        self.live = total(kept)
        self.most, self.peak = -1, kept
        self.pieces: list[Piece] = []

    def allocate(self, tensor: Storage | GradientStorage, kept: bool = False) -> None:
        self.live += tensor.bytes
        if kept and isinstance(tensor, Storage):
            self.kept[tensor.component] = self.kept.get(tensor.component, 0) + tensor.bytes

    def free(self, tensor: Storage | GradientStorage, kept: bool = False) -> None:
        self.live -= tensor.bytes
        if kept and isinstance(tensor, Storage):
            self.kept[tensor.component] -= tensor.bytes

    def run(self, *scratch: int) -> None:
        most = self.live + sum(scratch)
        if most > self.most:
            self.most, self.peak = most, self.kept | {TEMPORARY: most - total(self.kept)}

    def wait(self) -> None:
        self.run()
        self.pieces.append(Piece(self.peak, self.kept | {TEMPORARY: self.live - total(self.kept)}))
        self.most = -1

    def done(self) -> tuple[Piece, ...]:
        self.wait()
        return tuple(self.pieces)

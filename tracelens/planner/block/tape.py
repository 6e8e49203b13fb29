"""Recorder of the ops of a stretch of a model, in execution order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

from tracelens.planner.block.op import (
    Collective,
    Gradient,
    Kernel,
    Messages,
    Op,
    Storage,
    Value,
    Weight,
    both_ways,
)
from tracelens.planner.block.replay import Block, padded, replay

_SILENT = Messages()


@dataclass(frozen=True, eq=False)
class Section:
    """Ops from an input to an output.

    Attributes:
        ops: in execution order.
        input: of the first.
        output: of the last.
        padding: share of the rows of experts that holds no token.
    """

    ops: Sequence[Op]
    input: Value
    output: Value
    padding: float = 0.0

    @cached_property
    def memory(self) -> Block:
        """What it allocates and keeps."""
        return padded(replay(self.ops, self.input, self.output), self.padding)


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
        messages: Messages = _SILENT,
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
                self.scope, made, (output,), saved, inputs, gradient, weights, scratch, backward_scratch,
                waits, saves_last, kernels, messages, weight,
            )
        )  # fmt: skip
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

    def block(self, x: Value, y: Value) -> Block:
        """Memory of the ops from input to output."""
        return Section(self.ops, x, y).memory

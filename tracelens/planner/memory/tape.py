"""Memory of a stretch of a model in forward and backward, from sizes alone.

A `Tape` records ops in execution order, as autograd does: what each reads, allocates and saves, and what its
backward allocates. `Tape.block` replays them for what is kept between forward and backward, and the peak of
either. A tensor of the forward lives until its last reader has run, a saved one until the backward of the
last op that saved it. A gradient lives from its first producer to the backward of its tensor's own op;
gradients from several readers accumulate in place if nothing else refers to the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple

Held = dict[str, int]
"""Bytes by component."""

TEMPORARY = "temporary"
"""Component of gradients in flight, and of scratch memory of an op."""

Gradient = Literal["new", "same", "saved", "none"]
"""Gradients of an op's inputs: new tensors, views of the gradient of its output, its saved tensor changed in
place, or none."""


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


class _Op(NamedTuple):
    made: tuple[Storage, ...]
    outputs: tuple[Value, ...]
    saves: tuple[Storage, ...]
    scratch: int
    inputs: tuple[Value, ...]
    gradient: Gradient
    weights: int
    backward_scratch: int
    waits: bool = False


class Piece(NamedTuple):
    """Part of a pass between two waits for other ranks: memory at its peak and at its end."""

    peak: Held
    end: Held


def total(held: Held) -> int:
    """Sum over components."""
    return sum(held.values())


def added(a: Held, b: Held) -> Held:
    """Sums by component."""
    sums = a.copy()
    for name, size in b.items():
        sums[name] = sums.get(name, 0) + size
    return sums


class Block(NamedTuple):
    """Memory of a stretch of the model, with its input; its output counts only while it runs.

    Attributes:
        input_bytes: of its input.
        output: bytes of its output, and of the gradient of that.
        kept: between forward and backward, its input included.
        forward: pieces of its forward.
        unsaved: pieces of a forward that saves nothing.
        backward: pieces of its backward, with what is still kept and the gradient of the output.
    """

    input_bytes: int
    output: int
    kept: Held
    forward: tuple[Piece, ...]
    unsaved: tuple[Piece, ...]
    backward: tuple[Piece, ...]


class Tape:
    """Ops of a stretch of the model; their tensors count as `component`, unless inside `part`."""

    def __init__(self, component: str) -> None:
        self.component = component
        self.ops: list[_Op] = []

    @contextmanager
    def part(self, component: str) -> Iterator[None]:
        """Tensors of ops inside count as another component."""
        outer, self.component = self.component, component
        try:
            yield
        finally:
            self.component = outer

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
        """
        now = len(self.ops)
        storage = Storage(size, self.component, now) if of is None else of.storage
        output = Value(size, storage)
        saved = [value.storage for value in saves]
        made = [] if of is not None else [storage]
        if extra:
            kept = Storage(extra, self.component, now)
            made.append(kept)
            saved.append(kept)
        if keep:
            saved.append(storage)
        for value in (*inputs, *saves, *reads):
            value.storage.last = now
        storage.last = now
        for kept_storage in saved:
            kept_storage.saved += 1
        self.ops.append(
            _Op(
                tuple(made), (output,), tuple(saved), scratch, tuple(inputs), gradient, weights,
                backward_scratch, waits,
            )
        )  # fmt: skip
        return output

    def view(self, x: Value, size: int | None = None) -> Value:
        """A view of a tensor; the gradient of a partial view is a new tensor as large as the whole."""
        if size is None or size == x.bytes:
            return self.op([x], x.bytes, gradient="same", of=x)
        return self.op([x], size, of=x)

    def split(self, x: Value, sizes: Sequence[int]) -> list[Value]:
        """Parts of a tensor as views; their gradients are concatenated to a new tensor."""
        parts = [Value(size, x.storage) for size in sizes]
        x.storage.last = len(self.ops)
        self.ops.append(_Op((), tuple(parts), (), 0, (x,), "new", 0, 0))
        return parts

    def unbind(self, sizes: Sequence[int]) -> list[Value]:
        """A parameter in parts, whose gradients are collected and stacked before they accumulate."""
        parts = [Value(size, Storage(0, self.component, -1)) for size in sizes]
        self.ops.append(_Op((), tuple(parts), (), 0, (), "none", sum(sizes), 0))
        return parts

    def touch(self, *values: Value) -> None:
        """Keep these alive until the latest op has run."""
        for value in values:
            value.storage.last = len(self.ops) - 1

    def block(self, x: Value, y: Value) -> Block:
        """Replay the ops from input to output."""
        y.storage.last = len(self.ops)
        kept: Held = {}
        for storage in self._kept(x):
            kept[storage.component] = kept.get(storage.component, 0) + storage.bytes
        forward, unsaved = self._forward(x, save=True), self._forward(x, save=False)
        return Block(x.bytes, y.bytes, kept, forward, unsaved, self._backward(kept, y))

    def _kept(self, x: Value) -> list[Storage]:
        storages = {id(x.storage): x.storage}
        for op in self.ops:
            storages.update((id(storage), storage) for storage in op.saves)
        return list(storages.values())

    def _forward(self, x: Value, save: bool) -> tuple[Piece, ...]:
        """Tensors are freed after their last reader, unless they are saved."""
        run = _Run({x.storage.component: x.bytes})
        ends: dict[int, list[Storage]] = {}
        for number, op in enumerate(self.ops):
            for storage in op.made:
                run.live += storage.bytes
                if save and storage.saved:
                    run.kept[storage.component] = run.kept.get(storage.component, 0) + storage.bytes
                else:
                    ends.setdefault(storage.last, []).append(storage)
            run.note(op.scratch)
            if op.waits:
                run.wait()
            for storage in ends.pop(number, ()):
                run.live -= storage.bytes
        return run.done()

    def _backward(self, kept: Held, y: Value) -> tuple[Piece, ...]:
        run = _Backward(kept)
        run.give(y, run.grant(y.bytes))
        run.note()
        for op in reversed(self.ops):
            run.op(op)
        return run.done()


class _Run:
    """Memory during a pass: kept by component, live in total, and its peak since the last wait."""

    def __init__(self, kept: Held) -> None:
        self.kept = kept.copy()
        self.live = total(kept)
        self.most, self.peak = -1, kept
        self.pieces: list[Piece] = []

    def note(self, more: int = 0) -> None:
        if self.live + more > self.most:
            self.most, self.peak = self.live + more, self.now(more)

    def now(self, more: int = 0) -> Held:
        return self.kept | {TEMPORARY: self.live + more - total(self.kept)}

    def wait(self) -> None:
        self.note()
        self.pieces.append(Piece(self.peak, self.now()))
        self.most = -1

    def done(self) -> tuple[Piece, ...]:
        self.wait()
        return tuple(self.pieces)


class _Gradient:
    """Memory of a gradient, and the number of tensors that refer to it."""

    __slots__ = ("bytes", "holders")

    def __init__(self, size: int) -> None:
        self.bytes, self.holders = size, 0


class _Backward(_Run):
    """Memory during a backward pass, with the live gradients."""

    def __init__(self, kept: Held) -> None:
        super().__init__(kept)
        self.gradients: dict[int, tuple[Value, _Gradient]] = {}
        self.saves: dict[int, int] = {}

    def grant(self, size: int) -> _Gradient:
        self.live += size
        return _Gradient(size)

    def drop(self, gradient: _Gradient) -> None:
        gradient.holders -= 1
        if not gradient.holders:
            self.live -= gradient.bytes

    def give(self, value: Value, gradient: _Gradient) -> None:
        """A gradient arrives and accumulates with earlier ones of the same tensor."""
        gradient.holders += 1
        before = self.gradients.get(id(value))
        if before is None:
            self.gradients[id(value)] = (value, gradient)
        elif before[1].holders == 1:
            self.drop(gradient)
        else:
            accumulated = self.grant(value.bytes)
            accumulated.holders = 1
            self.note()
            self.drop(gradient)
            self.drop(before[1])
            self.gradients[id(value)] = (value, accumulated)

    def op(self, op: _Op) -> None:
        """The backward of an op; skipped if none of its outputs has a gradient."""
        arrived = [self.gradients.pop(id(output))[1] for output in op.outputs if id(output) in self.gradients]
        if op.gradient == "saved":
            self.release(op)
        if arrived:
            self._run(op, arrived)
            if op.waits:
                self.wait()
        for output in arrived:
            self.drop(output)
        if op.gradient != "saved":
            self.release(op)

    def release(self, op: _Op) -> None:
        """Free the saved tensors of an op, unless another op still needs them."""
        for storage in op.saves:
            remaining = self.saves.get(id(storage), storage.saved) - 1
            self.saves[id(storage)] = remaining
            if not remaining:
                self.live -= storage.bytes
                self.kept[storage.component] -= storage.bytes

    def _run(self, op: _Op, arrived: list[_Gradient]) -> None:
        if op.gradient == "none":
            self.note(op.weights + op.backward_scratch)
            return
        if op.gradient == "same":
            for value in op.inputs:
                self.give(value, arrived[0])
            return
        made = [(value, self.grant(value.bytes)) for value in op.inputs]
        self.note(op.weights + op.backward_scratch)
        for value, gradient in made:
            self.give(value, gradient)

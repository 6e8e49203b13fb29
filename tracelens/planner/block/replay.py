"""Memory of a stretch of a model in forward and backward: a replay of its ops, as autograd runs them.

A tensor of the forward lives until its last reader has run, a saved one until the backward of the last op
that saved it. A gradient lives from its first producer to the backward of its tensor's own op; gradients from
several readers accumulate in place if nothing else refers to the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tracelens.planner.block.op import Op, Storage, Value

Held = dict[str, int]
"""Bytes by component."""

TEMPORARY = "temporary"
"""Component of gradients in flight, and of scratch memory of an op."""

_ROWS = ("activations.dispatch", "activations.experts")
"""Components whose tensors have one row per token and expert."""


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


def replay(ops: Sequence[Op], x: Value, y: Value) -> Block:
    """Run the ops from input to output, and back."""
    y.storage.last = len(ops)
    storages = {id(x.storage): x.storage} | {id(storage): storage for op in ops for storage in op.saves}
    kept: Held = {}
    for storage in storages.values():
        kept[storage.component] = kept.get(storage.component, 0) + storage.bytes
    forward, unsaved = _forward(ops, x, save=True), _forward(ops, x, save=False)
    return Block(x.bytes, y.bytes, kept, forward, unsaved, _backward(ops, kept, y))


def padded(block: Block, part: float) -> Block:
    """Count this part of the rows, which holds no token, as a component of its own."""
    if not part:
        return block

    def split(held: Held) -> Held:
        empty = {name: round(held.get(name, 0) * part) for name in _ROWS}
        lower = {name: -size for name, size in empty.items()}
        return added(added(held, lower), {"buffers.worst_case": sum(empty.values())})

    def pieces(of_pass: tuple[Piece, ...]) -> tuple[Piece, ...]:
        return tuple(Piece(split(piece.peak), split(piece.end)) for piece in of_pass)

    return block._replace(
        kept=split(block.kept), forward=pieces(block.forward), backward=pieces(block.backward)
    )


def _forward(ops: Sequence[Op], x: Value, save: bool) -> tuple[Piece, ...]:
    """Tensors are freed after their last reader, unless they are saved."""
    run = _Run({x.storage.component: x.bytes})
    ends: dict[int, list[Storage]] = {}
    for number, op in enumerate(ops):
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


def _backward(ops: Sequence[Op], kept: Held, y: Value) -> tuple[Piece, ...]:
    run = _Backward(kept)
    run.give(y, run.grant(y.bytes))
    run.note()
    for op in reversed(ops):
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

    def op(self, op: Op) -> None:
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

    def release(self, op: Op) -> None:
        """Free the saved tensors of an op, unless another op still needs them."""
        for storage in op.saves:
            remaining = self.saves.get(id(storage), storage.saved) - 1
            self.saves[id(storage)] = remaining
            if not remaining:
                self.live -= storage.bytes
                self.kept[storage.component] -= storage.bytes

    def _run(self, op: Op, arrived: list[_Gradient]) -> None:
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

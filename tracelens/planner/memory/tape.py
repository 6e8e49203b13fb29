"""What a stretch of a model holds in memory while it runs forward and backward, from sizes alone.

A `Tape` records ops in the order in which they run, as autograd does: what each reads and makes, what it
saves for its backward, and what its backward makes. `Tape.block` then runs them and notes three things: what
is kept between forward and backward, and the most that is held at once in either. A tensor of the forward
lives until its last reader has run, a saved one until the backward of the last op that saved it. The gradient
of a tensor lives from the first op that makes it to the op that made the tensor; gradients from several
readers are summed in place where nothing else refers to the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple

Held = dict[str, int]
"""Bytes by component."""

TEMPORARY = "temporary"
"""Component of gradients on their way, and of what an op needs while it runs."""

Gradient = Literal["new", "same", "saved", "none"]
"""Of an op's inputs: tensors of their own, views of the gradient of its output, the tensor that the op has
saved, changed in place, or there are none."""


class Storage:
    """A piece of memory; tensors that are views of one another share it.

    Attributes:
        bytes: its size.
        component: what it counts as while it is kept.
        last: number of the last op of the forward that reads it.
        saved: how many ops save it.
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
    """A pass from one wait for other ranks to the next.

    Attributes:
        peak: bytes by component at its peak.
        end: when it waits, or at the end of the pass.
    """

    peak: Held
    end: Held


def total(held: Held) -> int:
    """All components together."""
    return sum(held.values())


def added(a: Held, b: Held) -> Held:
    """Sums by component."""
    sums = a.copy()
    for name, size in b.items():
        sums[name] = sums.get(name, 0) + size
    return sums


class Block(NamedTuple):
    """What a stretch of the model holds; its input counts, its output only while it runs.

    Attributes:
        input_bytes: bytes of its input.
        output: bytes of its output, and of the gradient that comes back for it.
        kept: between forward and backward, its input included.
        forward: in its pieces.
        unsaved: the same where nothing is saved.
        backward: in its pieces; what is still kept and the gradient of the output are included.
    """

    input_bytes: int
    output: int
    kept: Held
    forward: tuple[Piece, ...]
    unsaved: tuple[Piece, ...]
    backward: tuple[Piece, ...]


class Tape:
    """Ops of a stretch of the model.

    Args:
        component: that tensors count as, unless said otherwise.
    """

    def __init__(self, component: str) -> None:
        self.component = component
        self._ops: list[_Op] = []

    @contextmanager
    def part(self, component: str) -> Iterator[None]:
        """Inside, tensors count as another component."""
        usual, self.component = self.component, component
        try:
            yield
        finally:
            self.component = usual

    def input(self, size: int) -> Value:
        """A tensor that is there before the first op."""
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
            inputs: tensors that it reads and has gradients for.
            size: bytes of the output.
            saves: inputs, or other tensors that there are, which it keeps for its backward.
            reads: other tensors that it needs.
            extra: bytes that it makes and keeps besides.
            keep: whether it keeps its output.
            gradient: of its inputs.
            weights: bytes of the gradients of parameters: each is made, added to its buffer, and freed.
            scratch: bytes that it needs while it runs.
            backward_scratch: bytes that its backward needs.
            of: tensor whose storage the output is a view of.
            waits: whether it waits for other ranks, forward and backward.
        """
        now = len(self._ops)
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
        self._ops.append(
            _Op(
                tuple(made), (output,), tuple(saved), scratch, tuple(inputs), gradient, weights,
                backward_scratch, waits,
            )
        )  # fmt: skip
        return output

    def view(self, x: Value, size: int | None = None) -> Value:
        """A view of a tensor; of a part of it, the gradient is put into a new one as large as the whole."""
        if size is None or size == x.bytes:
            return self.op([x], x.bytes, gradient="same", of=x)
        return self.op([x], size, of=x)

    def split(self, x: Value, sizes: Sequence[int]) -> list[Value]:
        """Parts of a tensor as views of it; their gradients are joined to a new tensor."""
        parts = [Value(size, x.storage) for size in sizes]
        x.storage.last = len(self._ops)
        self._ops.append(_Op((), tuple(parts), (), 0, (x,), "new", 0, 0))
        return parts

    def unbind(self, sizes: Sequence[int]) -> list[Value]:
        """A parameter in parts, whose gradients are collected and stacked before they are added up."""
        parts = [Value(size, Storage(0, self.component, -1)) for size in sizes]
        self._ops.append(_Op((), tuple(parts), (), 0, (), "none", sum(sizes), 0))
        return parts

    def touch(self, *values: Value) -> None:
        """Note that these are still referred to."""
        for value in values:
            value.storage.last = len(self._ops) - 1

    def block(self, x: Value, y: Value) -> Block:
        """Run it from its input to its output."""
        y.storage.last = len(self._ops)
        kept: Held = {}
        for storage in self._kept(x):
            kept[storage.component] = kept.get(storage.component, 0) + storage.bytes
        forward, unsaved = self._forward(x, save=True), self._forward(x, save=False)
        return Block(x.bytes, y.bytes, kept, forward, unsaved, self._backward(kept, y))

    def _kept(self, x: Value) -> list[Storage]:
        storages = {id(x.storage): x.storage}
        for op in self._ops:
            storages.update((id(storage), storage) for storage in op.saves)
        return list(storages.values())

    def _forward(self, x: Value, save: bool) -> tuple[Piece, ...]:
        """What is read last by an op is freed behind it, unless it is saved."""
        run = _Run({x.storage.component: x.bytes})
        ends: dict[int, list[Storage]] = {}
        for number, op in enumerate(self._ops):
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
        for op in reversed(self._ops):
            run.op(op)
        return run.done()


class _Run:
    """A pass: what is kept by component, all that is held, and the most of it since the last wait.

    Args:
        kept: at its beginning.
    """

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
    """Memory of gradients, and how many tensors refer to it."""

    __slots__ = ("bytes", "holders")

    def __init__(self, size: int) -> None:
        self.bytes, self.holders = size, 0


class _Backward(_Run):
    """A backward pass: what is still kept, and the gradients that there are."""

    def __init__(self, kept: Held) -> None:
        super().__init__(kept)
        self.gradients: dict[int, tuple[Value, _Gradient]] = {}
        self.saves: dict[int, int] = {}

    def grant(self, size: int) -> _Gradient:
        self.live += size
        return _Gradient(size)

    def drop(self, gradient: _Gradient) -> None:
        """One tensor less refers to it."""
        gradient.holders -= 1
        if not gradient.holders:
            self.live -= gradient.bytes

    def give(self, value: Value, gradient: _Gradient) -> None:
        """A gradient arrives, and is added to what has arrived before."""
        gradient.holders += 1
        before = self.gradients.get(id(value))
        if before is None:
            self.gradients[id(value)] = (value, gradient)
        elif before[1].holders == 1:
            self.drop(gradient)
        else:
            total = self.grant(value.bytes)
            total.holders = 1
            self.note()
            self.drop(gradient)
            self.drop(before[1])
            self.gradients[id(value)] = (value, total)

    def op(self, op: _Op) -> None:
        """The backward of an op: where no gradient came for its outputs, it has none."""
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
        """What an op saved is freed, unless another has it, too."""
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

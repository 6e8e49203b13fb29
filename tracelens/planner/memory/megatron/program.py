"""What a tape allocates and frees, in order: the input of the simulated allocator."""

from __future__ import annotations

from typing import NamedTuple

from tracelens.planner.block import Gradient, Op, Storage, Tape, Value

Event = tuple[int, int]
"""A tensor and its bytes if it is allocated, -1 if it is freed. Tensors are numbered within a program."""

INPUT, OUTPUT_GRADIENT = 0, 1
"""Tensors that exist when a program begins: its input, and in its backward the gradient of its output."""


class Program(NamedTuple):
    """Allocations of a block of the model.

    Attributes:
        forward: of the forward, which leaves what the backward needs.
        unsaved: of a forward that leaves its output only.
        backward: of the backward, which leaves the gradient of the input.
        output: tensor of the output, which the next block frees.
        gradient: tensor of the gradient of the input; -1 for none.
    """

    forward: tuple[Event, ...]
    unsaved: tuple[Event, ...]
    backward: tuple[Event, ...]
    output: int
    gradient: int


class _Writer:
    """Events of one pass, and the numbers of its tensors."""

    def __init__(self, first: int) -> None:
        self.events: list[Event] = []
        self.next = first

    def allocate(self, size: int) -> int:
        number = self.next
        self.next += 1
        self.events.append((number, size))
        return number

    def free(self, number: int) -> None:
        self.events.append((number, -1))

    def scratch(self, size: int) -> None:
        if size:
            self.free(self.allocate(size))


class _Gradients:
    """Gradients in flight: which tensor holds them, for how many values."""

    def __init__(self, write: _Writer) -> None:
        self.write = write
        self.of: dict[int, int] = {}
        self.holders: dict[int, int] = {}

    def give(self, value: Value, tensor: int) -> None:
        self.holders[tensor] = self.holders.get(tensor, 0) + 1
        before = self.of.get(id(value))
        if before is None:
            self.of[id(value)] = tensor
        elif self.holders[before] == 1:
            self.drop(tensor)
        else:
            total = self.write.allocate(value.bytes)
            self.holders[total] = 1
            self.drop(tensor)
            self.drop(before)
            self.of[id(value)] = total

    def drop(self, tensor: int) -> None:
        self.holders[tensor] -= 1
        if not self.holders[tensor]:
            self.write.free(tensor)


def program(tape: Tape, x: Value, y: Value) -> Program:
    """The events of a tape from its input to its output."""
    y.storage.last = len(tape.ops)
    forward, numbers = _forward(tape, x, save=True)
    unsaved, _ = _forward(tape, x, save=False)
    backward, gradient = _backward(tape, x, y, numbers, forward.next)
    return Program(
        tuple(forward.events), tuple(unsaved.events), tuple(backward.events), numbers[id(y.storage)], gradient
    )


def _forward(tape: Tape, x: Value, save: bool) -> tuple[_Writer, dict[int, int]]:
    write = _Writer(OUTPUT_GRADIENT + 1)
    numbers = {id(x.storage): INPUT}
    ends: dict[int, list[Storage]] = {}
    for position, op in enumerate(tape.ops):
        for storage in op.made:
            numbers[id(storage)] = write.allocate(storage.bytes)
            if not (save and storage.saved):
                ends.setdefault(storage.last, []).append(storage)
        write.scratch(op.scratch)
        for storage in ends.pop(position, ()):
            write.free(numbers[id(storage)])
    return write, numbers


def _backward(tape: Tape, x: Value, y: Value, numbers: dict[int, int], first: int) -> tuple[_Writer, int]:
    write = _Writer(first)
    gradients = _Gradients(write)
    gradients.give(y, OUTPUT_GRADIENT)
    saved: dict[int, int] = {}

    def release(op: Op) -> None:
        for storage in op.saves:
            left = saved.get(id(storage), storage.saved) - 1
            saved[id(storage)] = left
            if not left:
                write.free(numbers[id(storage)])

    for op in reversed(tape.ops):
        arrived = [gradients.of.pop(id(output)) for output in op.outputs if id(output) in gradients.of]
        kind: Gradient = op.gradient
        if kind == "saved":
            release(op)
        if arrived and kind == "same":
            for value in op.inputs:
                gradients.give(value, arrived[0])
        elif arrived:
            made = [] if kind == "none" else [(value, write.allocate(value.bytes)) for value in op.inputs]
            write.scratch(op.backward_scratch)
            write.scratch(op.weights)
            for value, tensor in made:
                gradients.give(value, tensor)
        for tensor in arrived:
            gradients.drop(tensor)
        if kind != "saved":
            release(op)
    return write, gradients.of.get(id(x), -1)

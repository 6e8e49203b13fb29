"""Runs the allocations of a few training steps through the simulated allocator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import NamedTuple

from tracelens.planner.memory.megatron.allocator import Allocator, Block
from tracelens.planner.memory.megatron.program import INPUT, OUTPUT_GRADIENT, Event, Program


class Segment(NamedTuple):
    """Blocks of a chunk of which all, or only the first input, is kept for the backward."""

    programs: tuple[Program, ...]
    recompute: bool


class Pass:
    """A micro-batch in a chunk: its tensors between forward and backward."""

    def __init__(self, allocator: Allocator, segments: Sequence[Segment]) -> None:
        self.allocator, self.segments = allocator, segments
        self.tensors: list[dict[int, Block]] = []
        self.inputs: list[Block | None] = []

    def forward(self, stream: Block | None) -> Block | None:
        """Runs it on an input; returns the output."""
        for segment in self.segments:
            if segment.recompute:
                self.inputs.append(stream)
                for number, program in enumerate(segment.programs):
                    tensors = _started(INPUT, stream)
                    self._run(program.unsaved, tensors)
                    if number and stream is not None:
                        self.allocator.free(stream)
                    stream = tensors.get(program.output)
                continue
            for program in segment.programs:
                tensors = _started(INPUT, stream)
                self._run(program.forward, tensors)
                stream = tensors.pop(program.output, None)
                self.tensors.append(tensors)
        return stream

    def backward(self, gradient: Block | None) -> Block | None:
        """Frees what the forward left; returns the gradient of the input."""
        for segment in reversed(self.segments):
            kept = self._again(segment) if segment.recompute else self._kept(segment)
            for program, held in zip(reversed(segment.programs), reversed(kept), strict=True):
                tensors = held | _started(OUTPUT_GRADIENT, gradient)
                self._run(program.backward, tensors)
                gradient = tensors.pop(program.gradient, None)
                for left in tensors.values():
                    self.allocator.free(left)
        return gradient

    def _kept(self, segment: Segment) -> list[dict[int, Block]]:
        count = len(segment.programs)
        kept, self.tensors = self.tensors[-count:], self.tensors[:-count]
        return kept

    def _again(self, segment: Segment) -> list[dict[int, Block]]:
        """The forward once more, saving; its output is not needed."""
        stream, kept = self.inputs.pop(), []
        for program in segment.programs:
            tensors = _started(INPUT, stream)
            self._run(program.forward, tensors)
            stream = tensors.pop(program.output, None)
            kept.append(tensors)
        if stream is not None:
            self.allocator.free(stream)
        return kept

    def _run(self, events: Sequence[Event], tensors: dict[int, Block]) -> None:
        allocator = self.allocator
        for tensor, size in events:
            if size > 0:
                tensors[tensor] = allocator.malloc(size)
            elif size < 0 and tensor in tensors:
                allocator.free(tensors.pop(tensor))


def _started(tensor: int, block: Block | None) -> dict[int, Block]:
    return {} if block is None else {tensor: block}


def run(
    allocator: Allocator,
    chunks: Sequence[Sequence[Sequence[Segment]]],
    order: Sequence[tuple[bool, int]],
    model_state: Sequence[int],
    states: Sequence[int],
    stream_bytes: int,
    ends: tuple[bool, bool],
    steps: int = 2,
) -> None:
    """Runs whole steps: the optimizer states come into being at the end of the first.

    Args:
        allocator: to run on.
        chunks: of this rank, in order: the variants of each of their segments.
        order: forwards (True) and backwards (False) of a step, with their chunk.
        model_state: bytes of parameters, gradients and main parameters, by tensor.
        states: bytes of optimizer states, by tensor.
        stream_bytes: of an activation between stages.
        ends: whether the first chunk has no sender, and the last no receiver.
        steps: to run.
    """
    pick = Random(0).randrange
    for size in model_state:
        allocator.malloc(size)
    for step in range(steps):
        waiting: list[list[Pass]] = [[] for _ in chunks]
        for is_forward, chunk in order:
            if is_forward:
                is_first = ends[0] and chunk == 0
                made = Pass(allocator, [variants[pick(len(variants))] for variants in chunks[chunk]])
                output = made.forward(None if is_first else allocator.malloc(stream_bytes))
                waiting[chunk].append(made)
            else:
                is_last = ends[1] and chunk == len(chunks) - 1
                gradient = allocator.malloc(4 if is_last else stream_bytes)
                output = waiting[chunk].pop(0).backward(gradient)
            if output is not None:
                # Sent to the neighbor, and deallocated.
                allocator.free(output)
        if step == 0:
            for size in states:
                allocator.malloc(size)


def schedule(forwards: int, warm_up: int, chunks: int, group: int) -> Iterator[tuple[bool, int]]:
    """Order of a rank's passes: warm-up forwards, one backward and one forward in turn, the last backwards.

    Args:
        forwards: micro-batches times chunks.
        warm_up: forwards before the first backward.
        chunks: of the rank.
        group: micro-batches that a chunk takes before it is the next one's turn.
    """

    def chunk(position: int) -> int:
        return position // group % chunks

    for position in range(min(warm_up, forwards)):
        yield True, chunk(position)
    for position in range(forwards):
        yield False, chunks - 1 - chunk(position)
        if warm_up + position < forwards:
            yield True, chunk(warm_up + position)

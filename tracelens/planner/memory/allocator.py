"""torch's caching allocator, simulated: what a monitor sees is what it has reserved, not what tensors use.

Rules of c10/cuda/CUDACachingAllocator.cpp (https://github.com/pytorch/pytorch, v2.11.0, also built for
ROCm), with default settings and one stream: sizes round up to 512 bytes; tensors of up to 1 MiB come from
segments of 2 MiB, those below 10 MiB from segments of 20 MiB, others from a segment of their own, rounded up
to 2 MiB; a request takes the smallest free block that is large enough, and splits it if more than 1 MiB
(small: 512 bytes) is left; freed neighbors merge; without room, segments that are free as a whole return to
the device.

`program` turns a section of the model into what it allocates and frees, in order; `run_steps` runs the
programs of a rank's chunks through the allocator for a few training steps.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import NamedTuple

from tracelens.planner.block import GradientStorage, Section, Storage, walk_backward, walk_forward

MIB = 2**20
ROUND, SMALL, SMALL_SEGMENT = 512, MIB, 2 * MIB
LARGE, LARGE_SEGMENT, LARGE_ROUND = 10 * MIB, 20 * MIB, 2 * MIB

Event = tuple[int, int]
"""A tensor and its bytes if it is allocated, -1 if it is freed. Tensors are numbered within a program."""

INPUT, OUTPUT_GRADIENT = 0, 1
"""Tensors that exist when a program begins: its input, and in its backward the gradient of its output."""


class OutOfMemory(Exception):
    """A request that no segment of the device has room for."""


class Block:
    """A part of a segment: in use, or free and in its pool."""

    __slots__ = ("address", "after", "before", "free", "pool", "size")

    def __init__(
        self, address: int, size: int, pool: list[tuple[int, int]], before: Block | None, after: Block | None
    ) -> None:
        self.address, self.size, self.pool = address, size, pool
        self.before, self.after, self.free = before, after, False


class Allocator:
    """Segments of a device, and the blocks in them."""

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity = capacity
        self.reserved = self.most_reserved = 0  # bytes of its segments
        self.allocated = self.most_allocated = 0  # bytes of the blocks in use
        self.flushes = 0  # how often it returned free segments for lack of room
        self._small: list[tuple[int, int]] = []
        self._large: list[tuple[int, int]] = []
        self._free: dict[int, Block] = {}
        self._end = 0

    def malloc(self, size: int) -> Block:
        """A block of at least this size; raises OutOfMemory."""
        rounded = max(ROUND, -(-size // ROUND) * ROUND)
        pool, least = (self._small, ROUND) if rounded <= SMALL else (self._large, SMALL + 1)
        position = bisect_left(pool, (rounded, 0))
        if position < len(pool):
            block = self._free.pop(pool.pop(position)[1])
        else:
            if pool is self._small:
                length = SMALL_SEGMENT
            elif rounded < LARGE:
                length = LARGE_SEGMENT
            else:
                length = -(-rounded // LARGE_ROUND) * LARGE_ROUND
            if self.capacity is not None and self.reserved + length > self.capacity:
                # Without room, segments that are free as a whole return to the device.
                self.flushes += 1
                for idle in list(self._free.values()):
                    if idle.before is None and idle.after is None:
                        self._take(idle)
                        self.reserved -= idle.size
                if self.reserved + length > self.capacity:
                    raise OutOfMemory
            self.reserved += length
            self.most_reserved = max(self.most_reserved, self.reserved)
            # Segments never touch.
            block = Block(self._end, length, pool, None, None)
            self._end += length + ROUND
        if block.size - rounded >= least:
            rest = Block(block.address + rounded, block.size - rounded, pool, block, block.after)
            if block.after is not None:
                block.after.before = rest
            block.after, block.size = rest, rounded
            self._put(rest)
        block.free = False
        self.allocated += block.size
        self.most_allocated = max(self.most_allocated, self.allocated)
        return block

    def free(self, block: Block) -> None:
        """Return a block, merged with its free neighbors."""
        self.allocated -= block.size
        before, after = block.before, block.after
        if before is not None and before.free:
            self._take(before)
            before.size += block.size
            before.after = after
            if after is not None:
                after.before = before
            block = before
        if after is not None and after.free:
            self._take(after)
            block.size += after.size
            block.after = after.after
            if after.after is not None:
                after.after.before = block
        self._put(block)

    def _put(self, block: Block) -> None:
        block.free = True
        insort(block.pool, (block.size, block.address))
        self._free[block.address] = block

    def _take(self, block: Block) -> None:
        block.free = False
        del block.pool[bisect_left(block.pool, (block.size, block.address))]
        del self._free[block.address]


class Program(NamedTuple):
    """What a section allocates and frees."""

    forward: tuple[Event, ...]  # leaves what the backward needs
    unsaved: tuple[Event, ...]  # a forward that leaves its output only
    backward: tuple[Event, ...]  # leaves the gradient of the input
    output: int  # tensor of the output, which the next section frees
    gradient: int  # tensor of the gradient of the input; -1 for none


def program(section: Section) -> Program:
    """The events of a section, forward and backward."""
    forward, unsaved = (_EventRecorder({id(section.input.storage): INPUT}) for _ in range(2))
    walk_forward(section, forward)
    walk_forward(section, unsaved, save=False)
    gradient = GradientStorage(section.output.bytes)
    backward = _EventRecorder(forward.numbers | {id(gradient): OUTPUT_GRADIENT}, forward.next)
    input_gradient = walk_backward(section, gradient, backward)
    return Program(
        forward=tuple(forward.events),
        unsaved=tuple(unsaved.events),
        backward=tuple(backward.events),
        output=forward.numbers[id(section.output.storage)],
        gradient=-1 if input_gradient is None else backward.numbers[id(input_gradient)],
    )


class _EventRecorder:
    """A visitor that numbers tensors and writes down their events."""

    def __init__(self, numbers: dict[int, int], first: int = OUTPUT_GRADIENT + 1) -> None:
        self.numbers, self.next = numbers, first  # id of a tensor to its number
        self.events: list[Event] = []

    def allocate(self, tensor: Storage | GradientStorage, kept: bool = False) -> None:
        self.numbers[id(tensor)] = self.next
        self.events.append((self.next, tensor.bytes))
        self.next += 1

    def free(self, tensor: Storage | GradientStorage, kept: bool = False) -> None:
        self.events.append((self.numbers[id(tensor)], -1))

    def run(self, *scratch: int) -> None:
        for size in filter(None, scratch):
            self.events += ((self.next, size), (self.next, -1))
            self.next += 1

    def wait(self) -> None:
        """Waiting allocates nothing."""


class Segment(NamedTuple):
    """Blocks of a chunk of which all, or only the first input, is kept for the backward."""

    programs: tuple[Program, ...]
    recompute: bool


class MicroBatchRun:
    """A micro-batch in a chunk: its tensors between forward and backward."""

    def __init__(self, allocator: Allocator, segments: Sequence[Segment]) -> None:
        self.allocator, self.segments = allocator, segments
        self.tensors: list[dict[int, Block]] = []  # of each program that keeps some for its backward
        self.inputs: list[Block | None] = []  # of the segments that are recomputed

    def forward(self, stream: Block | None) -> Block | None:
        """Runs it on an input; returns the output."""
        for segment in self.segments:
            if segment.recompute:
                self.inputs.append(stream)
            for number, program in enumerate(segment.programs):
                if segment.recompute:
                    tensors = self._run(program.unsaved, INPUT, stream)
                    if number and stream is not None:
                        self.allocator.free(stream)
                    stream = tensors.get(program.output)
                else:
                    tensors = self._run(program.forward, INPUT, stream)
                    stream = tensors.pop(program.output, None)
                    self.tensors.append(tensors)
        return stream

    def backward(self, gradient: Block | None) -> Block | None:
        """Frees what the forward left; returns the gradient of the input."""
        for segment in reversed(self.segments):
            if segment.recompute:
                # The forward once more, saving; its output is not needed.
                stream = self.inputs.pop()
                for program in segment.programs:
                    tensors = self._run(program.forward, INPUT, stream)
                    stream = tensors.pop(program.output, None)
                    self.tensors.append(tensors)
                if stream is not None:
                    self.allocator.free(stream)
            for program in reversed(segment.programs):
                tensors = self._run(program.backward, OUTPUT_GRADIENT, gradient, self.tensors.pop())
                gradient = tensors.pop(program.gradient, None)
                for tensor in tensors.values():
                    self.allocator.free(tensor)
        return gradient

    def _run(
        self,
        events: Sequence[Event],
        first: int,
        block: Block | None,
        held: Mapping[int, Block] | None = None,
    ) -> dict[int, Block]:
        """The tensors after these events, from those held and `block` as the tensor `first`."""
        allocator, tensors = self.allocator, dict(held or {})
        if block is not None:
            tensors[first] = block
        for tensor, size in events:
            if size > 0:
                tensors[tensor] = allocator.malloc(size)
            elif size < 0 and tensor in tensors:
                allocator.free(tensors.pop(tensor))
        return tensors


def run_steps(
    allocator: Allocator,
    chunks: Sequence[Sequence[Sequence[Segment]]],
    order: Sequence[tuple[bool, int]],
    model_state: Sequence[int],
    states: Sequence[int],
    stream_bytes: int,
    ends: tuple[bool, bool],
) -> None:
    """Runs two whole steps: the optimizer states come into being at the end of the first.

    Args:
        allocator: to run on.
        chunks: of this rank, in order: the variants of each of their segments.
        order: forwards (True) and backwards (False) of a step, with their chunk.
        model_state: bytes of parameters, gradients and main parameters, by tensor.
        states: bytes of optimizer states, by tensor.
        stream_bytes: of an activation between stages.
        ends: whether the first chunk has no sender, and the last no receiver.
    """
    pick = Random(0).randrange
    for size in model_state:
        allocator.malloc(size)
    for step in range(2):
        waiting: list[list[MicroBatchRun]] = [[] for _ in chunks]
        for is_forward, chunk in order:
            if is_forward:
                is_first = ends[0] and chunk == 0
                made = MicroBatchRun(allocator, [variants[pick(len(variants))] for variants in chunks[chunk]])
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

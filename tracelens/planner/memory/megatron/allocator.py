"""torch's caching allocator, simulated: what a monitor sees is what it has reserved, not what tensors use.

Rules of c10/cuda/CUDACachingAllocator.cpp (https://github.com/pytorch/pytorch, v2.11.0, also built for
ROCm), with default settings and one stream: sizes round up to 512 bytes; tensors of up to 1 MiB come from
segments of 2 MiB, those below 10 MiB from segments of 20 MiB, others from a segment of their own, rounded up
to 2 MiB; a request takes the smallest free block that is large enough, and splits it if more than 1 MiB
(small: 512 bytes) is left; freed neighbors merge; without room, segments that are free as a whole return to
the device.
"""

from __future__ import annotations

from bisect import bisect_left, insort

MIB = 2**20
ROUND, SMALL, SMALL_SEGMENT = 512, MIB, 2 * MIB
LARGE, LARGE_SEGMENT, LARGE_ROUND = 10 * MIB, 20 * MIB, 2 * MIB


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
    """Segments of a device, and the blocks in them.

    Attributes:
        reserved: bytes of its segments.
        allocated: bytes of the blocks in use.
        most_reserved: at most.
        most_allocated: at most.
        flushes: how often it returned free segments for lack of room.
    """

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity = capacity
        self.reserved = self.allocated = self.most_reserved = self.most_allocated = self.flushes = 0
        self._small: list[tuple[int, int]] = []
        self._large: list[tuple[int, int]] = []
        self._free: dict[int, Block] = {}
        self._end = 0

    def malloc(self, size: int) -> Block:
        """A block of at least this size; raises OutOfMemory."""
        rounded = max(ROUND, -(-size // ROUND) * ROUND)
        pool, least = (self._small, ROUND) if rounded <= SMALL else (self._large, SMALL + 1)
        position = bisect_left(pool, (rounded, 0))
        fits = position < len(pool)
        block = self._free.pop(pool.pop(position)[1]) if fits else self._segment(rounded, pool)
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

    def _segment(self, size: int, pool: list[tuple[int, int]]) -> Block:
        if pool is self._small:
            length = SMALL_SEGMENT
        elif size < LARGE:
            length = LARGE_SEGMENT
        else:
            length = -(-size // LARGE_ROUND) * LARGE_ROUND
        if self.capacity is not None and self.reserved + length > self.capacity:
            self._flush()
            if self.reserved + length > self.capacity:
                raise OutOfMemory
        self.reserved += length
        self.most_reserved = max(self.most_reserved, self.reserved)
        # Segments never touch.
        block = Block(self._end, length, pool, None, None)
        self._end += length + ROUND
        return block

    def _flush(self) -> None:
        self.flushes += 1
        for block in list(self._free.values()):
            if block.before is None and block.after is None:
                self._take(block)
                self.reserved -= block.size

    def _put(self, block: Block) -> None:
        block.free = True
        insort(block.pool, (block.size, block.address))
        self._free[block.address] = block

    def _take(self, block: Block) -> None:
        block.free = False
        del block.pool[bisect_left(block.pool, (block.size, block.address))]
        del self._free[block.address]

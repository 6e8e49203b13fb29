"""Numbers as profilers write them to int64 that may be added: what is out of range is no number.

Everything that a trace calls a count, a size or an id lies within LARGEST_COUNT afterwards, times within
TIMES_NS, so that neither sums nor differences overflow anywhere behind.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

import msgspec
import numpy as np

from tracelens.arrays import Bool, Int
from tracelens.limits import LARGEST_COUNT

FIRST_NS, LAST_NS = -(1 << 56), 1 << 62
"""Starts lie between: some years before the clock's zero to the year 2116."""

LARGEST_SUM = 1 << 56
"""Durations of one trace add up to less (ns, two years), and so do message and copy sizes (bytes)."""

_MOST_GRID_BYTES = 200


def integers(values: list[Any]) -> tuple[Int, int]:
    """A column of int64; text numbers are read, what is no number or out of range becomes -1.

    Returns:
        (the column, how many numbers were out of range).
    """
    try:
        column = np.fromiter(values, dtype=np.int64, count=len(values))
    except (TypeError, ValueError, OverflowError):
        beyond = sum(isinstance(value, int | float) and not _fits(value) for value in values)
        return np.array([integer(value) for value in values], dtype=np.int64), beyond
    outside = (column > LARGEST_COUNT) | (column < -LARGEST_COUNT)
    if not outside.any():
        return column, 0
    return np.where(outside, -1, column), int(outside.sum())


def integer(value: object, largest: int = LARGEST_COUNT) -> int:
    """An int from what a profiler may write for one: 7, 7.0, "7", "0x7"; -1 if it is none or out of range."""
    if isinstance(value, str):
        try:
            value = int(value.strip(), 0)
        except ValueError:
            return -1
    return int(value) if isinstance(value, int | float) and _fits(value, largest) else -1


def _fits(value: float, largest: int = LARGEST_COUNT) -> bool:
    return abs(value) <= largest  # not so a NaN


@lru_cache(maxsize=4096)
def blocks(grid: bytes) -> int:
    """Thread blocks of a launch grid as a profiler writes it, `[32, 4, 1]`; -1 where it is none."""
    if len(grid) > _MOST_GRID_BYTES:
        return -1
    try:
        sides = msgspec.json.decode(grid, type=list[int])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return -1
    count = prod(sides)
    return count if sides and min(sides) > 0 and count <= LARGEST_COUNT else -1


def identity(value: object) -> int | str:
    """A process or thread id as int where it is one ("7" and 7 are the same thread), else as text.

    Ids out of range stay distinct, as text.
    """
    if isinstance(value, str):
        number = int(value) if value.isascii() and value.isdigit() and len(value) < 19 else -1
        return number if 0 <= number <= LARGEST_COUNT else value
    if isinstance(value, int) and abs(value) > LARGEST_COUNT:
        return str(value)
    return integer(value)


def summable(values: Int) -> Bool:
    """Which non-negative values can be kept so that all that are kept add up to less than LARGEST_SUM.

    All of them in any genuine trace; else those that do not exceed an equal share of it.
    """
    if float(np.maximum(values, 0).sum(dtype=np.float64)) < LARGEST_SUM:
        return np.ones(len(values), dtype=bool)
    keep: Bool = values <= LARGEST_SUM // max(len(values), 1)
    return keep

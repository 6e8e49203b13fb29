"""What two sets of points in time have in common, and what only one of them has."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tracelens.trace.intervals import Union, union

Int = NDArray[np.int64]


def intersection(one: Union, other: Union) -> Union:
    """The time in both sets."""
    low, high = _pieces(one, other)
    return _kept(low, high, (one.covered(low, high) > 0) & (other.covered(low, high) > 0))


def difference(one: Union, other: Union) -> Union:
    """The time in the first set and not in the other."""
    low, high = _pieces(one, other)
    return _kept(low, high, (one.covered(low, high) > 0) & (other.covered(low, high) == 0))


def both(one: Union, other: Union) -> Union:
    """The time in one or the other set."""
    return union(np.concatenate((one.start, other.start)), np.concatenate((one.end, other.end)))


def cut(start: Int, end: Int, inside: Union) -> tuple[Int, Int, Int]:
    """The parts of intervals that lie in a set.

    Args:
        start: ns.
        end: ns, not before `start`.
        inside: the set.

    Returns:
        (row, start, end) of each part, in order of the rows.
    """
    first = np.searchsorted(inside.end, start, side="right")
    last = np.searchsorted(inside.start, end, side="left")
    count = np.maximum(last - first, 0)
    row = np.repeat(np.arange(len(start)), count)
    place = first[row] + np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    return row, np.maximum(start[row], inside.start[place]), np.minimum(end[row], inside.end[place])


def _pieces(one: Union, other: Union) -> tuple[Int, Int]:
    """Intervals each of which is in a set as a whole or not at all."""
    edges = np.unique(np.concatenate((one.start, one.end, other.start, other.end)))
    return edges[:-1], edges[1:]


def _kept(low: Int, high: Int, chosen: NDArray[np.bool_]) -> Union:
    return union(low[chosen], high[chosen])

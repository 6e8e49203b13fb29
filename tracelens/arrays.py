"""Numpy array types that the whole package uses. Times are int64 nanoseconds, absent integers are -1."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Int = NDArray[np.int64]
Float = NDArray[np.float64]
Bool = NDArray[np.bool_]

Scalar = TypeVar("Scalar", bound=np.generic)


def lookup(values: NDArray[Scalar], index: Int, missing: float | NDArray[Any]) -> NDArray[Scalar]:
    """`values[index]`, and `missing` where the index is -1; keeps the dtype of `values`.

    Args:
        values: may be empty where no index is valid.
        index: into `values`, -1 for none.
        missing: one value, or one for each index.
    """
    if len(values) <= 2 * len(index) and not isinstance(missing, np.ndarray):
        # One value more takes less time than a branch for each index.
        extended = np.empty(len(values) + 1, dtype=values.dtype)
        extended[0], extended[1:] = missing, values
        return extended.take(index + 1)
    # -1 is the last value, if there is one.
    result = values.take(index) if len(values) else np.empty(len(index), dtype=values.dtype)
    np.copyto(result, missing, where=index < 0, casting="unsafe")
    return result


def taken(columns: Iterable[NDArray[Any]], rows: Int | Bool) -> Iterator[NDArray[Any]]:
    """The values of columns at positions or under a mask."""
    rows = np.flatnonzero(rows) if rows.dtype == bool else rows  # counted once, not for each column
    return (values.take(rows) for values in columns)  # mostly faster than values[rows]


_FEW_CODES = 4
"""So many are compared with all rows faster than each row is looked up."""


def marked(codes: NDArray[np.integer[Any]], is_marked: Bool) -> Bool:
    """`is_marked[codes]`, which takes a fraction of the time where few codes are marked."""
    few = np.flatnonzero(is_marked)
    if len(few) > _FEW_CODES:
        return is_marked.take(codes)
    rows = np.zeros(len(codes), dtype=bool)
    for code in few.tolist():
        rows |= codes == code
    return rows


def unique(values: NDArray[Scalar]) -> NDArray[Scalar]:
    """The distinct integers of an array, ascending; ten times as fast as np.unique, which hashes them.

    np.unique and its like also import masked arrays, which takes as long as a small analysis.
    """
    ordered = np.sort(values, axis=None)
    is_new = np.ones(len(ordered), dtype=bool)
    is_new[1:] = ordered[1:] != ordered[:-1]
    return ordered[is_new]


def isin(values: NDArray[Scalar], others: NDArray[Scalar]) -> Bool:
    """Which values are among others that may lie far apart, for which np.isin imports masked arrays, too."""
    if not len(others):
        return np.zeros(len(values), dtype=bool)
    in_order = np.sort(others)
    is_known: Bool = in_order.take(np.searchsorted(in_order, values), mode="clip") == values
    return is_known


def median(values: Sequence[float] | Sequence[NDArray[Any]] | NDArray[Any]) -> Any:
    """The median of values, or of each column, as numpy has it, whose own imports masked arrays.

    There is at least one value, and none is NaN.
    """
    low, high = (len(values) - 1) // 2, len(values) // 2
    in_place = np.partition(np.asarray(values, dtype=float), (low, high), axis=0)
    return (in_place[low] + in_place[high]) / 2


def percentiles(values: NDArray[Any], *shares: float) -> Float:
    """Percentiles by linear interpolation, as numpy has them, whose own import masked arrays.

    Args:
        values: at least one.
        shares: from 0 to 100.
    """
    in_order, place = np.sort(values), np.array(shares) / 100 * (len(values) - 1)
    below = np.floor(place).astype(np.int64)
    low, high = in_order[below], in_order[np.minimum(below + 1, len(values) - 1)]
    share = place - below
    # As numpy rounds.
    result: Float = np.where(share < 0.5, low + (high - low) * share, high - (high - low) * (1 - share))
    return result


_FEW_RUNS = 32
"""So many ascending runs are merged faster than their rows are sorted."""


def ordered(*keys: NDArray[Any]) -> Int:
    """Rows in order of the first key, among equal ones of the next, and so on; ties stay in order of rows.

    np.lexsort takes its keys the other way round, and several times as long.
    """
    first = keys[0]
    # Much comes in order of time already, or as a few parts that do.
    descents = np.count_nonzero(first[1:] < first[:-1])
    if descents >= _FEW_RUNS:
        return _sorted_rows(*keys)
    rows = np.argsort(first, kind="stable") if descents else np.arange(len(first))
    is_tie = np.ones(max(len(rows) - 1, 0), dtype=bool)
    for key, next_key in pairwise(key[rows] if descents else key for key in keys):
        is_tie &= key[1:] == key[:-1]
        if (is_tie & (next_key[1:] < next_key[:-1])).any():
            ties = np.flatnonzero(np.append(is_tie, False) | np.append(False, is_tie))
            tied = rows[ties]
            rows[ties] = tied[_sorted_rows(*(values[tied] for values in keys))]
            break
    return rows


def _sorted_rows(*keys: NDArray[Any]) -> Int:
    """The same by one sort of numbers that hold integer keys and the row, where they fit."""
    count = len(keys[0])
    bits = count.bit_length()
    number, size = np.zeros(count, dtype=np.int64), 1
    for key in keys if count else ():
        if key.dtype.kind == "f":
            break
        least = int(key.min())
        span = int(key.max()) - least + 1
        size *= span
        if size >= 1 << (63 - bits):
            break
        number *= span
        number += np.subtract(key, least, dtype=np.int64)
    else:
        number <<= bits
        number |= np.arange(count)
        number.sort()
        number &= (1 << bits) - 1
        return number
    if len(keys) == 1:
        return np.argsort(keys[0], kind="stable")
    rows = _sorted_rows(*keys[1:])
    return rows[_sorted_rows(keys[0][rows])]


def numbered(values: NDArray[Scalar]) -> tuple[NDArray[Scalar], Int]:
    """The distinct integers of an array, ascending, and the position of each element among them."""
    rows = ordered(values)
    in_order = values[rows]
    is_new = np.ones(len(rows), dtype=bool)
    is_new[1:] = in_order[1:] != in_order[:-1]
    position = np.empty(len(rows), dtype=np.int64)
    position[rows] = np.cumsum(is_new) - 1
    return in_order[is_new], position


def distinct(codes: NDArray[Any], size: int) -> tuple[Int, Int]:
    """Distinct codes below `size`, ascending, and the position of each code among them."""
    # Marking them takes no sorting, but as much memory as there may be codes.
    if 4 * len(codes) < size or codes.min(initial=0) < 0:
        return numbered(codes)
    is_used = np.zeros(size, dtype=bool)
    is_used[codes] = True
    used = np.flatnonzero(is_used)
    position = np.empty(size, dtype=np.int64)
    position[used] = np.arange(len(used))
    return used, position.take(codes)


def first_rows(group: Int, groups: int) -> Int:
    """The first row of each of so many groups, all of which occur: no sorting, as np.unique does."""
    first = np.empty(groups, dtype=np.int64)
    first[group[::-1]] = np.arange(len(group))[::-1]  # the last write stays
    return first


def ranges(first: Int, count: Int) -> tuple[Int, Int]:
    """The integers of many ranges, one range behind the other.

    Args:
        first: of each range.
        count: how many integers each holds, not negative.

    Returns:
        (range, integer) of each, the range as its position in `first`.
    """
    owner = np.repeat(np.arange(len(count)), count)
    return owner, np.arange(len(owner)) + (first - (np.cumsum(count) - count))[owner]


def steady_steps(count: int, ranks: int) -> range:
    """Positions of the steps that stand for a run, of so many in order, on so many ranks.

    The first one follows what is not recorded: the ranks may begin it far apart, and the GPU may be cold. Of
    two steps on one rank it counts.
    """
    return range(1 if count > 2 or ranks > 1 < count else 0, count)


STUB = 0.1  # of the median step


def typical_step(durations: Sequence[float], ranks: int) -> int:
    """Position of the step that stands for a run: of median duration, of two in the middle the shorter.

    Args:
        durations: of all steps in order, means or sums of the ranks.
        ranks: how many.
    """
    candidates = whole_steps(durations, ranks)
    in_order = sorted(durations[step] for step in candidates)
    return durations.index(in_order[(len(in_order) - 1) // 2], candidates[0])


def whole_steps(durations: Sequence[float], ranks: int) -> list[int]:
    """Positions of the steps of which `typical_step` is the median: the steady ones without stubs.

    A recording that ends early leaves a stub of its last step, which stands for nothing.
    """
    steady = steady_steps(len(durations), ranks)
    # Where something held one of few steps up, the first one tells what is a stub.
    in_order, steady_in_order = sorted(durations), sorted(durations[step] for step in steady)
    least = STUB * min(in_order[len(in_order) // 2], steady_in_order[len(steady_in_order) // 2])
    return [step for step in steady if durations[step] >= least]

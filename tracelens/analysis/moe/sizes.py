"""Rows of each expert by its number, where a trace records them.

A grouped call may have them among its arguments, or cut its rows apart by them; so does a loop over experts
before its first GEMM. The order of launch is no number: experts without rows launch nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tracelens.analysis.common import integers
from tracelens.arrays import Int
from tracelens.trace import Trace, argument_texts

_SPLITS = ("aten::split_with_sizes", "aten::split_with_sizes_copy", "aten::unsafe_split_with_sizes")
_DIM = 2
"""Argument of a split that says along which dimension; rows lie along the first."""


class RowSplits(NamedTuple):
    """Calls that cut rows apart by recorded sizes, in order of time."""

    start: Int  # ns
    sizes: list[tuple[int, ...]]

    def between(self, start: int, end: int) -> list[tuple[int, ...]]:
        """Sizes of the calls in a stretch of the host's time, the last first."""
        first, last = np.searchsorted(self.start, (start, end)).tolist()
        return self.sizes[first:last][::-1]


def row_splits(trace: Trace) -> RowSplits:
    """The splits of rows in a trace; ask with `trace.once(row_splits)`."""
    events, ops = trace.arrays, trace.tables["ops"]
    event, values = ops.array("event_id"), ops.coded("values")
    # Many splits are of attention, along other dimensions, and share a few texts.
    sizes: dict[int, tuple[int, ...]] = {}
    is_split = events.named(lambda name: name in _SPLITS)[event]
    for code in np.unique(values.codes[is_split]).tolist():
        texts = argument_texts(values.values[code])
        if len(texts) > _DIM and texts[_DIM] == "0" and (parts := integers(texts[1])):
            sizes[code] = tuple(parts)
    rows = np.flatnonzero(is_split & np.isin(values.codes, list(sizes)))
    rows = rows[np.argsort(events.start[event[rows]], kind="stable")]
    return RowSplits(events.start[event[rows]], [sizes[code] for code in values.codes[rows].tolist()])


def rows_in_loop(splits: Sequence[tuple[int, ...]], rows: Sequence[int], experts: int) -> tuple[int, ...]:
    """Rows of each expert by the split in front of a loop; empty where there is none of these rows.

    Args:
        splits: the last first.
        rows: of each GEMM, in order of launch; an expert without rows has none.
        experts: of all ranks together, -1 if not known.
    """
    for sizes in splits:
        if [size for size in sizes if size] == list(rows) and (experts < 1 or not experts % len(sizes)):
            return sizes
    return ()


def rows_in_group(lists: Sequence[Sequence[int]], groups: int, rows: int) -> tuple[int, ...]:
    """Rows of each expert by lists of lengths or offsets; empty where none is about these rows.

    Args:
        lists: of whole numbers, among the arguments of a grouped call or of the splits inside of it.
        groups: of the call, one an expert.
        rows: of all groups together.
    """
    for numbers in lists:
        if not numbers or len(numbers) not in (groups, groups + 1):
            continue
        if len(numbers) == groups and min(numbers) >= 0 and sum(numbers) == rows:
            return tuple(numbers)
        ends = [*[0] * (groups + 1 - len(numbers)), *numbers]
        lengths = tuple(end - start for start, end in pairwise(ends))
        if (ends[0], ends[-1]) == (0, rows) and min(lengths) >= 0:
            return lengths
    return ()

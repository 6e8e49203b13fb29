"""Begin/end pairs of generic traces (B/E by nesting, b/e by id) to events with a duration."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from tracelens.arrays import Bool, Int
from tracelens.read.json import MISSING, Columns, Encoded

_OPEN, _CLOSE = ("B", "b"), ("E", "e")


class Pairs(NamedTuple):
    """Rows of the begin events that found their end, and the time between the two."""

    begin: Int
    dur_ns: Int


def pair_begin_end(table: Encoded, columns: Columns) -> tuple[Pairs, Bool]:
    """Pair them in order of time; an end closes the last open begin of its thread (B/E) or id (b/e).

    Args:
        table: as decoded.
        columns: its columns, with the times that can be used.

    Returns:
        (pairs, mask of begin and end events that found no partner).
    """
    codes = {code: name for code, name in enumerate(table.phases) if name in (*_OPEN, *_CLOSE)}
    alone = np.isin(columns.phase, list(codes))
    empty = np.empty(0, dtype=np.int64)
    if not alone.any():
        return Pairs(empty, empty), alone
    rows = np.flatnonzero(alone & (columns.ts_ns != MISSING))
    rows = rows[np.argsort(columns.ts_ns[rows], kind="stable")]
    waiting: dict[tuple[object, ...], list[int]] = defaultdict(list)
    begins: list[int] = []
    ends: list[int] = []
    for row in rows.tolist():
        phase = codes[columns.phase[row]]
        key = _key(table, row, phase)
        if phase in _OPEN:
            waiting[key].append(row)
        elif waiting[key]:
            begins.append(waiting[key].pop())
            ends.append(row)
    begin, end = np.array(begins, dtype=np.int64), np.array(ends, dtype=np.int64)
    alone[begin] = False
    alone[end] = False
    return Pairs(begin, columns.ts_ns[end] - columns.ts_ns[begin]), alone


def _key(table: Encoded, row: int, phase: str) -> tuple[object, ...]:
    columns = table.columns
    pid = table.pids[columns.pid[row]]
    if phase in ("B", "E"):
        return pid, table.tids[columns.tid[row]]
    return columns.category[row], table.async_ids.get(row, ""), columns.name[row]

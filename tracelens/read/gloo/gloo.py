"""gloo's communication on the host: which op asked for it.

The profiler records an op (c10d::allreduce_) on the thread that asks, and the communication itself as an
annotation (gloo:all_reduce) on a thread of the group; sends and receives on the asking thread. Neither names
the other nor the process group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tracelens.arrays import Bool, Int
from tracelens.read.gloo.ops import OPS, Arguments

MARK = "gloo:"


class HostEvents(NamedTuple):
    """Events of a trace, one row each."""

    is_op: Bool
    is_annotation: Bool
    name: Int
    names: Sequence[str]
    thread: Int
    tid: Int
    start: Int
    end: Int


class Communication(NamedTuple):
    """gloo's communication, one element an annotation.

    Attributes:
        row: of the annotation, ascending.
        op: of the op that asked for it, -1 if not in the trace.
        aside: whether it ran on a thread of its group.
    """

    row: Int
    op: Int
    aside: Bool


def communication(events: HostEvents, arguments: Arguments) -> Communication:
    """Tie the annotations to the ops that asked for them.

    Those of sends and receives begin inside of their op. Others begin later on another thread; a group takes
    up what it is asked for in order, so of equal ones the first belongs to the first.
    """
    marked = np.array([name.startswith(MARK) for name in events.names], dtype=bool)
    row = np.flatnonzero(events.is_annotation & marked[events.name])
    asked = np.array([name in OPS for name in events.names], dtype=bool)
    ops = np.flatnonzero(events.is_op & asked[events.name])
    ops = ops[np.argsort(events.start[ops], kind="stable")]
    left: dict[str, list[int]] = {}
    for one in ops.tolist():
        left.setdefault(OPS[events.names[events.name[one]]].mark, []).append(one)
    tied = {}
    for one in row[np.argsort(events.start[row], kind="stable")].tolist():
        waiting = left.get(events.names[events.name[one]].removeprefix(MARK), [])
        place = _asker(events, arguments, one, waiting)
        tied[one] = waiting.pop(place) if place >= 0 else -1
    op = np.array([tied[one] for one in row.tolist()], dtype=np.int64)
    aside = events.thread[row] != np.where(op >= 0, events.thread[np.maximum(op, 0)], -1)
    return Communication(row, op, aside & ~np.isin(events.thread[row], events.thread[ops]))


def _asker(events: HostEvents, arguments: Arguments, one: int, waiting: Sequence[int]) -> int:
    """Place among the ops that wait of the one that asked for an annotation, -1 if there is none."""
    begin, dims = events.start[one], arguments.dims(one, 0)
    for place, op in enumerate(waiting):
        if events.start[op] > begin:
            break
        if events.thread[op] == events.thread[one]:
            if begin <= events.end[op]:
                return place
            continue
        given = arguments.dims(op, OPS[events.names[events.name[op]]].given)
        if not dims or not given or dims[0] == given[0]:
            return place
    return -1

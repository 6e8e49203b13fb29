"""gloo's communication on the host: which op started it.

The profiler records an op (c10d::allreduce_) on the calling thread, and the communication itself as an
annotation (gloo:all_reduce) on a thread of the group; sends and receives on the calling thread. Neither names
the other nor the process group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tracelens.arrays import Bool, Int, lookup
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
        op: of the op that started it, -1 if not in the trace.
        aside: whether it ran on a thread of its group.
    """

    row: Int
    op: Int
    aside: Bool


def communication(events: HostEvents, arguments: Arguments) -> Communication:
    """Tie the annotations to the ops that started them.

    Those of sends and receives begin inside of their op. Others begin later on another thread; a group works
    in the order of the calls, so of equal ones the first belongs to the first.
    """
    marked = np.array([name.startswith(MARK) for name in events.names], dtype=bool)
    row = np.flatnonzero(events.is_annotation & marked[events.name])
    calls_gloo = np.array([name in OPS for name in events.names], dtype=bool)
    ops = np.flatnonzero(events.is_op & calls_gloo[events.name])
    ops = ops[np.argsort(events.start[ops], kind="stable")]
    waiting_ops: dict[str, list[int]] = {}
    for op_row in ops.tolist():
        waiting_ops.setdefault(OPS[events.names[events.name[op_row]]].mark, []).append(op_row)
    tied = {}
    for annotation in row[np.argsort(events.start[row], kind="stable")].tolist():
        waiting = waiting_ops.get(events.names[events.name[annotation]].removeprefix(MARK), [])
        position = _calling_op(events, arguments, annotation, waiting)
        tied[annotation] = waiting.pop(position) if position >= 0 else -1
    op = np.array([tied[annotation] for annotation in row.tolist()], dtype=np.int64)
    aside = events.thread[row] != lookup(events.thread, op, -1)
    return Communication(row, op, aside & ~np.isin(events.thread[row], events.thread[ops]))


def _calling_op(events: HostEvents, arguments: Arguments, annotation: int, waiting: Sequence[int]) -> int:
    """Position in `waiting` of the op that started an annotation, -1 if there is none."""
    begin, dims = events.start[annotation], arguments.dims(annotation, 0)
    for position, op in enumerate(waiting):
        if events.start[op] > begin:
            break
        if events.thread[op] == events.thread[annotation]:
            if begin <= events.end[op]:
                return position
            continue
        op_dims = arguments.dims(op, OPS[events.names[events.name[op]]].input)
        if not dims or not op_dims or dims[0] == op_dims[0]:
            return position
    return -1

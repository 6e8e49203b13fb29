"""The calls of a trace that differ: same op, same arguments, with all their times."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracelens.analysis.common import call_time
from tracelens.analysis.roofline import OpCalls
from tracelens.arrays import Int
from tracelens.costs import OpCost
from tracelens.reproducers.inputs import RECORDED, callable_op, grids
from tracelens.table import codes
from tracelens.trace import Trace, Work


class Call(NamedTuple):
    """What tells calls apart: the op and its recorded arguments, as the JSON texts of the ops table.

    Attributes:
        op: its name.
        shapes, dtypes, strides, values: of its arguments.
        kernel, blocks: the kernel and its grid, where they have to stand for arguments: see indices.py.
    """

    op: str
    shapes: str
    dtypes: str
    strides: str
    values: str
    kernel: str = ""
    blocks: int = -1

    @property
    def recorded(self) -> tuple[str, str, str, str]:
        """The texts of the ops table, in the order of RECORDED."""
        return self.shapes, self.dtypes, self.strides, self.values


class Case(NamedTuple):
    """All calls of one op with the same arguments.

    Attributes:
        call: the op and its arguments.
        times: GPU time of each call, ns: the union of what it launched.
        ranks: on which they are.
        kernels: names of what one call launches, the longest first.
        devices: GPU names.
        cost: what a call must do at least, None where that cannot be counted.
        at_ns: where the longest call is, since the first event of its trace.
        sources: where the op and its arguments are recorded, see trace.tables.EVENT_SOURCES.
    """

    call: Call
    times: Int
    ranks: tuple[int, ...]
    kernels: tuple[str, ...]
    devices: tuple[str, ...]
    cost: OpCost | None
    at_ns: int
    sources: tuple[str, ...] = ("trace",)

    @property
    def total_ns(self) -> int:
        return int(self.times.sum())


def cases(trace: Trace, work: Work) -> list[Case]:
    """The different calls behind this GPU work, those with most time first; see opaque.callable_op."""
    ops = trace.once(OpCalls)
    op_of = callable_op(trace, work)
    callable_work, op_of = work.take(op_of >= 0), op_of[op_of >= 0]
    if not len(callable_work.event):
        return []
    calls, dur = call_time(callable_work, op_of)
    table = trace.tables["ops"]
    texts = {name: table.columns[name] for name in RECORDED}
    row = ops.row[calls]
    kernel, blocks = (_largest(values, op_of, calls) for values in grids(trace, callable_work, op_of))
    recorded = (texts[name].codes[row] for name in RECORDED)
    group, _ = codes(trace.arrays.name[calls], *recorded, kernel, blocks)
    order = np.lexsort((dur, group))
    last = np.flatnonzero(np.diff(group[order], append=-1))
    first = np.concatenate(([0], last[:-1] + 1))
    of_call = np.argsort(op_of, kind="stable")
    begin = np.searchsorted(op_of[of_call], calls)
    end = np.searchsorted(op_of[of_call], calls, side="right")
    origin, source = int(trace.arrays.start.min()), trace.tables["events"].coded("source")
    distinct = []
    for low, high in zip(first.tolist(), (last + 1).tolist(), strict=True):
        case_calls = order[low:high]
        longest = int(case_calls[-1])
        op, pieces = int(calls[longest]), of_call[begin[longest] : end[longest]]
        pieces = pieces[np.argsort(-callable_work.dur[pieces], kind="stable")]
        op_row = int(row[longest])
        call = Call(ops.name(op), *(texts[name].values[texts[name].codes[op_row]] for name in RECORDED))
        if blocks[longest] >= 0:
            kernel_name = trace.arrays.names[kernel[longest]]
            call = call._replace(kernel=kernel_name, blocks=int(blocks[longest]))
        distinct.append(
            Case(
                call,
                dur[case_calls],
                (trace.meta.rank,),
                tuple(
                    dict.fromkeys(callable_work.names[callable_work.name[piece]] for piece in pieces.tolist())
                ),
                tuple(sorted(set(trace.meta.devices.values()))),
                ops.cost(op, *_launch(trace, callable_work, int(pieces[0]))),
                int(trace.arrays.start[op]) - origin,
                tuple(sorted({source.values[code] for code in source.codes[calls[case_calls]].tolist()})),
            )
        )
    return sorted(distinct, key=lambda case: -case.total_ns)


def _largest(values: Int, op_of: Int, calls: Int) -> Int:
    largest = np.full(len(calls), -1, dtype=np.int64)
    np.maximum.at(largest, np.searchsorted(calls, op_of), values)
    return largest


def merged(ranks: list[list[Case]]) -> list[Case]:
    """The cases of several ranks as one list, those with most time first."""
    by_call: dict[Call, Case] = {}
    for case in (case for rank in ranks for case in rank):
        previous = by_call.get(case.call)
        if previous is None:
            by_call[case.call] = case
            continue
        longer = max(case, previous, key=lambda candidate: int(candidate.times.max()))
        by_call[case.call] = longer._replace(
            times=np.concatenate((previous.times, case.times)), ranks=(*previous.ranks, *case.ranks)
        )
    return sorted(by_call.values(), key=lambda case: -case.total_ns)


def _launch(trace: Trace, work: Work, piece: int) -> tuple[str, int, int]:
    """Kernel, thread blocks and forward op of a piece of work."""
    return work.names[work.name[piece]], int(work.blocks[piece]), int(work.forward[piece])

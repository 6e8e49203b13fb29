"""Which cost model counts which GPU work, and why the rest is not counted.

GPU work is grouped into calls: all that one op launched is one call, and what has no usable op is a call of
its own. A call is counted by the first of these that can:

1. a copy between host and device, or between devices: by its bytes, against the link;
2. communication: by the sizes that the profiler recorded with it;
3. the op's own cost model, then that of the nearest op around it (when nothing else in there is counted);
4. the bytes of a copy or memset, or the kernel's name and launch grid;
5. launched before the recording began: the same work at the end of the recording.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from tracelens.analysis.roofline.op_calls import OpCalls
from tracelens.analysis.roofline.reasons import (
    BEYOND,
    CUSTOM_OP,
    CUT_OFF,
    NO_MODEL,
    PARTLY,
    REPEATED,
    cut_off,
    lacking,
    unknown,
    with_surroundings,
)
from tracelens.analysis.roofline.repeat import repeats
from tracelens.analysis.roofline.transfers import NamedCost, collectives, copies, copy_cost
from tracelens.arrays import Bool, Int, lookup
from tracelens.costs import NO_SHAPES, OpCall, OpCost, Uncounted, find
from tracelens.guard import Failure
from tracelens.table import codes, nearest
from tracelens.trace import Trace, Work

_LOCAL = ("dtod", "memset")
# A call with more FLOPs or bytes than this would take minutes on any device: its sizes are wrong.
_LARGEST = 1 << 56
_LARGEST_BYTES = 1 << 46


class Counted(NamedTuple):
    """A kind of call that was counted; calls of one kind are one row of the roofline.

    Attributes:
        name: op, copy or kernel.
        shapes: its tensor arguments as text.
        cost: of one call.
        note: what else there is to say.
    """

    name: str
    shapes: str
    cost: OpCost
    note: str


class Costing(NamedTuple):
    """What was counted how; aligned with the GPU work.

    Attributes:
        call: number of the call that each piece of work belongs to.
        item: index into `items` of its call, -1 where it was not counted.
        reason: index into `reasons` of why it was not, -1 where it was.
        items: all kinds of counted calls.
        reasons: why calls were not counted.
    """

    call: Int
    item: Int
    reason: Int
    items: list[Counted]
    reasons: list[str]


def costing(trace: Trace, work: Work) -> Costing:
    """Count the GPU work of one rank; all of it is counted once and kept with the trace."""
    return trace.once(_of_all) if work is trace.work else _of(trace, work)


def _of_all(trace: Trace) -> Costing:
    return _of(trace, trace.work)


def _of(trace: Trace, work: Work) -> Costing:
    return _Costing(trace, work, np.ones(len(work.event), dtype=bool)).run()


def matrix_costing(trace: Trace, work: Work) -> Costing:
    """The same, of what may run on matrix units alone; other work is left uncounted, without a reason."""
    return _Costing(trace, work, _may_multiply(trace, work)).run_some()


def _may_multiply(trace: Trace, work: Work) -> Bool:
    """Which work a cost model may count as a GEMM: its op's, or one of those around it."""
    events = trace.arrays
    code = np.unique(events.name[events.where("op")]).tolist()
    models = [(number, find(events.names[number])) for number in code]
    multiplying = [number for number, model in models if model and model.may_multiply]
    around = nearest(events.parent, events.depth, np.isin(events.name, multiplying) & events.where("op"))
    multiplies: Bool = lookup(around, work.op, -1) >= 0
    return multiplies | work.unlinked


class _Costing:
    def __init__(self, trace: Trace, work: Work, selected: Bool) -> None:
        self.trace, self.work, self.selected = trace, work, selected
        self.events = trace.arrays
        self.ops = trace.once(OpCalls)
        count = len(work.event)
        # A call is known by the event row of its op, or by a number beyond all event rows.
        self.call = len(self.events.start) + np.arange(count)
        self.item = np.full(count, -1, dtype=np.int64)
        self.reason = np.full(count, -1, dtype=np.int64)
        self._items: dict[Counted, int] = {}
        self._reasons: dict[str, int] = {}

    def run(self) -> Costing:
        self._links()
        self._ops()
        self._surroundings()
        self._alone()
        self._early()
        self._name_reasons()
        return Costing(self.call, self.item, self.reason, list(self._items), list(self._reasons))

    def run_some(self) -> Costing:
        """The rules for ops, of the work that was asked for."""
        self._links(communication=False)
        self._ops()
        self._surroundings()
        self._alone()
        self._early()
        cut = np.flatnonzero(cut_off(self.trace, self.work, self.call) & (self.item >= 0))
        self._set(cut, CUT_OFF)
        return Costing(self.call, self.item, self.reason, list(self._items), list(self._reasons))

    @property
    def _uncounted(self) -> Int:
        return np.flatnonzero((self.item < 0) & self.selected)

    def _set(self, rows: Int, counted: Counted | str) -> None:
        self.item[rows], self.reason[rows] = self._code(counted)

    def _code(self, counted: Counted | str) -> tuple[int, int]:
        """(item, reason) of what was counted or not."""
        if isinstance(counted, str):
            return -1, self._reasons.setdefault(counted, len(self._reasons))
        return self._items.setdefault(counted, len(self._items)), -1

    def _links(self, communication: bool = True) -> None:
        """What goes over links: copies and communication."""
        for rows, kind, cost in copies(self.trace, self.work):
            if kind not in _LOCAL:
                self._set(rows, cost if isinstance(cost, str) else _counted(cost))
                if isinstance(cost, str):
                    self._copies_of_ops(rows, kind)
        for rows, cost in collectives(self.trace, self.work) if communication else ():
            self._set(rows, cost if isinstance(cost, str) else _counted(cost))

    def _copies_of_ops(self, rows: Int, kind: str) -> None:
        """Copies whose size was not recorded move what their op writes."""
        rows = rows[lookup(self.ops.row, self.work.op[rows], -1) >= 0]
        for row in rows.tolist():
            counted = self._count(row, int(self.work.op[row]), -1)
            if isinstance(counted, Counted):
                cost = copy_cost(kind, counted.cost.write_bytes)
                copy = self.work.names[self.work.name[row]]
                self._set(np.array([row]), Counted(copy, counted.shapes, cost, cost.note))

    def _ops(self) -> None:
        rows = self._uncounted
        rows = rows[self.work.op[rows] >= 0]
        rows = rows[self.ops.row[self.work.op[rows]] >= 0]
        self._count_ops(rows, self.work.op[rows])

    def _count_ops(self, rows: Int, op: Int) -> None:
        """Count work at `rows` by the cost models of the ops `op`, aligned with it."""
        if not len(rows):
            return
        calls, of_row = np.unique(op, return_inverse=True)
        order = np.lexsort((self.work.end[rows] - self.work.start[rows], of_row))
        longest = rows[order[np.flatnonzero(np.diff(of_row[order], append=-1))]]
        needs = {name for name in self._names(calls) if (model := find(name)) and model.forward}
        forward = np.where(self._named(calls, needs), self.work.forward[longest], -1)
        # The kernel tells what arguments do not (TF32 or FP32, element type of a list of tensors).
        kernel = (self.work.name[longest], self.work.blocks[longest])
        group, _ = codes(*self.ops.keys(calls), *self.ops.keys(forward)[1:], *kernel)
        _, first = np.unique(group, return_index=True)
        coded = [
            self._code(self._count(*call))
            for call in zip(*(key[first].tolist() for key in (longest, calls, forward)), strict=True)
        ]
        item, reason = (
            np.array(codes_, dtype=np.int64)[group][of_row] for codes_ in zip(*coded, strict=True)
        )
        self.item[rows], self.reason[rows] = item, reason
        self.call[rows[item >= 0]] = op[item >= 0]

    def _names(self, op: Int) -> Iterable[str]:
        return (self.events.names[code] for code in np.unique(self.events.name[op]).tolist())

    def _named(self, op: Int, names: set[str]) -> Bool:
        name_codes = [code for code, name in enumerate(self.events.names) if name in names] if names else []
        return np.isin(self.events.name[op], name_codes)

    def _count(self, row: int, op: int, forward: int) -> Counted | str:
        """One call of an op, or why it cannot be counted; `row` is its longest piece of work."""
        name = self.ops.name(op)
        model = find(name)
        if model is None:
            return unknown(name)
        kernel = self.work.names[self.work.name[row]]
        call = self.ops.call(op, kernel, int(self.work.blocks[row]), forward)
        try:
            cost = model.count(call)
        except Uncounted as why:
            known = self.ops.recorded(op) or isinstance(why.reason, Failure)
            return why.reason if known else NO_SHAPES
        moved = max(cost.read_bytes, cost.write_bytes, cost.link_bytes)
        if cost.flops > _LARGEST or moved > _LARGEST_BYTES:
            return BEYOND
        return Counted(name, self.ops.describe(op), cost, cost.note)

    def _surroundings(self) -> None:
        """Ops that could not be counted, by an op around them in which nothing else was."""
        rows = self._uncounted
        rows = rows[self.work.op[rows] >= 0]
        if not len(rows):
            return
        parent, depth = self.events.parent, self.events.depth
        taken = with_surroundings(self.events, self.call[(self.item >= 0) & (self.call < len(parent))])
        usable = self.events.named(find) & (self.ops.row >= 0)
        around = nearest(parent, depth, usable)
        above = parent[self.work.op[rows]]
        outer = lookup(around, above, -1)
        keep = (outer >= 0) & ~taken[outer]
        self._count_ops(rows[keep], outer[keep])

    def _alone(self) -> None:
        """Copies, memsets and kernels that can be counted by themselves."""
        free = self.item < 0
        for rows, kind, copied in copies(self.trace, self.work):
            if kind in _LOCAL and not isinstance(copied, str):
                self._set(rows[free[rows]], _counted(copied))
        rows = self._uncounted
        rows = rows[self.work.is_kernel[rows]]
        group, (name, blocks) = codes(self.work.name[rows], self.work.blocks[rows])
        for number, (code, count) in enumerate(zip(name.tolist(), blocks.tolist(), strict=True)):
            kernel = self.work.names[code]
            model = find(f"kernel::{kernel}")
            if model is None:
                continue
            launches = rows[group == number]
            try:
                cost = model.count(OpCall(f"kernel::{kernel}", kernel=kernel, blocks=count))
            except Uncounted as why:
                self._set(launches, why.reason)
                continue
            op = self.work.op[launches]
            for caller in np.unique(op).tolist():
                label = self.ops.name(caller) if caller >= 0 else kernel
                self._set(launches[op == caller], Counted(label, f"{count:,} blocks", cost, cost.note))

    def _early(self) -> None:
        """Work that was launched before the recording began."""
        repeat = repeats(self.work)
        rows = np.flatnonzero((self.item < 0) & (repeat >= 0))
        rows = rows[self.item[repeat[rows]] >= 0]
        if not len(rows):
            return
        # The call must be there with all its work: half of it did not do what the whole call has to do.
        call = self.call[repeat[rows]]
        known, whole_count = np.unique(self.call, return_counts=True)
        distinct, inverse, part_count = np.unique(call, return_inverse=True, return_counts=True)
        complete = (whole_count[np.searchsorted(known, distinct)] == part_count)[inverse]
        self._set(rows[~complete], PARTLY)
        rows, call = rows[complete], call[complete]
        items = list(self._items)
        item = self.item[repeat[rows]]
        for kind in np.unique(item).tolist():
            counted = items[kind]
            self._set(rows[item == kind], counted._replace(note=_join(REPEATED, counted.note)))
        _, first, of_call = np.unique(call, return_index=True, return_inverse=True)
        self.call[rows] = len(self.events.start) + rows[first][of_call]

    def _name_reasons(self) -> None:
        """Take back what the chosen step cut off, and say why the rest was not counted."""
        cut = np.flatnonzero(cut_off(self.trace, self.work, self.call) & (self.item >= 0))
        self._set(cut, CUT_OFF)
        opaque = [number for reason, number in self._reasons.items() if reason in (NO_MODEL, CUSTOM_OP)]
        unexplained = (self.item < 0) & (self.reason < 0)
        for rows, reason in lacking(self.trace, self.work, np.isin(self.reason, opaque), unexplained):
            self._set(rows, reason)


def _counted(call_cost: NamedCost) -> Counted:
    name, shapes, cost = call_cost
    return Counted(name, shapes, cost, cost.note)


def _join(*notes: str) -> str:
    return "; ".join(filter(None, notes))

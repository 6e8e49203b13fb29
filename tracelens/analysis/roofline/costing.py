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

import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct

from tracelens.analysis.common import call_time, grammar, group_kind, integers
from tracelens.arrays import Bool, Int, first_rows, lookup, numbered, ordered, unique
from tracelens.costs import NO_SHAPES, CostModel, Engine, OpCall, OpCost, ServingBatch, Uncounted, find
from tracelens.dtypes import short_dtype
from tracelens.guard import Failure
from tracelens.table import Coded, codes, nearest, sums
from tracelens.trace import (
    WORK_KINDS,
    Events,
    Trace,
    Work,
    argument_dtypes,
    argument_lists,
    argument_texts,
    decoded,
    describe,
    rows_by_code,
)

_LOCAL = ("dtod", "memset")

# What decides whether a figure is shown, and what a note says.
# A call with more FLOPs or bytes than this would take minutes on any device: its sizes are wrong.
LARGEST_FLOPS = 1 << 56
LARGEST_BYTES = 1 << 46
MOSTLY_UNCOUNTED = 0.5
"""Share of a step's computing time. Above it, kernels whose names do not tell may multiply matrices as well:
lower, a few unknown kernels would hide the MFU; higher, it would be shown of half a step."""
MOST_OVERCOUNTED = 0.05
"""Share of a step's time on matrix units for which the FLOPs are refuted: beyond it the MFU without them is
too low to be shown."""
CACHED_RATIO = 4  # data / cache size: up to this a good part of the data stays in the cache
LARGE_FLOPS = 20e9  # a GEMM of this size keeps all units of a GPU busy for tens of microseconds


Key = tuple[int, ...]
"""What tells a call from others: codes of its name, its shapes, other arguments, kernel and thread blocks."""


class Counted(NamedTuple):
    """A kind of call that was counted; calls of one kind are one row of the roofline."""

    name: str  # op, copy or kernel
    shapes: str  # its tensor arguments as text
    cost: OpCost  # of one call
    note: str  # what else there is to say


class CostColumns(NamedTuple):
    """Several costs, a column for each field of `OpCost`."""

    flops: Int
    read_bytes: Int
    write_bytes: Int
    link_bytes: Int
    dtype: Sequence[str]
    engine: Sequence[Engine]
    link: Sequence[str]

    @classmethod
    def of(cls, costs: Iterable[OpCost]) -> CostColumns:
        # Without costs there are no columns.
        columns: dict[str, Any] = dict(zip(OpCost._fields, zip(*costs, strict=True), strict=False))
        fields = {name: columns.get(name, ()) for name in cls._fields}
        fields |= {name: np.array(fields[name], dtype=np.int64) for name in cls._fields[:4]}
        return cls(**fields)

    @property
    def on_matrix_units(self) -> Bool:
        return np.array([engine == "matrix" for engine in self.engine], dtype=bool)

    @property
    def is_linked(self) -> Bool:
        return np.array([link != "" for link in self.link], dtype=bool)


class Costing(Struct, frozen=True, eq=False, dict=True):
    """What was counted how; aligned with the GPU work."""

    work: Work
    call: Int  # number of the call that each piece of work belongs to
    item: Int  # index into `items` of its call, -1 where it was not counted
    reason: Int  # index into `reasons` of why it was not, -1 where it was
    items: list[Counted]  # all kinds of counted calls
    reasons: list[str]  # why calls were not counted

    @cached_property
    def costs(self) -> CostColumns:
        """Of one call of each kind."""
        return CostColumns.of(item.cost for item in self.items)

    @cached_property
    def by_kind(self) -> tuple[Int, Int]:
        """Number of calls and their GPU time, by kind of call; 0 where all were cut off."""
        rows = np.flatnonzero(self.item >= 0)
        _, dur = call_time(self.work.take(rows), self.call[rows])
        _, first = np.unique(self.call[rows], return_index=True)
        item, size = self.item[rows[first]], len(self.items)
        return np.bincount(item, minlength=size), sums(item, dur, size)


class _Costing:
    def __init__(self, trace: Trace, work: Work) -> None:
        self.trace, self.work = trace, work
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
        # Take back what the chosen step cut off, and say why the rest was not counted.
        cut = np.flatnonzero(cut_off(self.trace, self.work, self.call) & (self.item >= 0))
        self._set(cut, CUT_OFF)
        opaque = [number for reason, number in self._reasons.items() if reason in (NO_MODEL, CUSTOM_OP)]
        unexplained = (self.item < 0) & (self.reason < 0)
        for rows, reason in lacking(self.trace, self.work, np.isin(self.reason, opaque), unexplained):
            self._set(rows, reason)
        return Costing(self.work, self.call, self.item, self.reason, list(self._items), list(self._reasons))

    @property
    def _uncounted(self) -> Int:
        return np.flatnonzero(self.item < 0)

    def _set(self, rows: Int, counted: Counted | str) -> None:
        self.item[rows], self.reason[rows] = self._code(counted)

    def _code(self, counted: Counted | str) -> tuple[int, int]:
        """(item, reason) of what was counted or not."""
        if isinstance(counted, str):
            return -1, self._reasons.setdefault(counted, len(self._reasons))
        return self._items.setdefault(counted, len(self._items)), -1

    def _links(self) -> None:
        """What goes over links: copies and communication."""
        for rows, kind, cost in copies(self.trace, self.work):
            if kind not in _LOCAL:
                self._set(rows, cost if isinstance(cost, str) else _counted(cost))
                if not isinstance(cost, str):
                    continue
                # Copies whose size was not recorded move what their op writes.
                for row in rows[lookup(self.ops.row, self.work.op[rows], -1) >= 0].tolist():
                    op, kernel = self.work.op.item(row), self.work.names[self.work.name.item(row)]
                    (counted,) = self._count(
                        op, [(self.ops.shapes_text(op), self.work.blocks.item(row))], kernel
                    )
                    if isinstance(counted, Counted):
                        moved = copy_cost(kind, counted.cost.write_bytes)
                        copy = self.work.names[self.work.name[row]]
                        self._set(np.array([row]), Counted(copy, counted.shapes, moved, moved.note))
        for rows, cost in collectives(self.trace, self.work):
            self._set(rows, cost if isinstance(cost, str) else _counted(cost))

    def _ops(self) -> None:
        rows = self._uncounted
        rows = rows[self.work.op[rows] >= 0]
        rows = rows[self.ops.row[self.work.op[rows]] >= 0]
        self._count_ops(rows, self.work.op[rows])

    def _count_ops(self, rows: Int, op: Int) -> None:
        """Count work at `rows` by the cost models of the ops `op`, aligned with it."""
        if not len(rows):
            return
        calls, of_row = numbered(op)
        order = ordered(of_row, self.work.end[rows] - self.work.start[rows])
        longest = rows[order[np.flatnonzero(np.diff(of_row[order], append=-1))]]
        called = (self.events.names[code] for code in unique(self.events.name[calls]).tolist())
        needs = {name for name in called if (model := find(name)) and model.forward}
        name_codes = [code for code, name in enumerate(self.events.names) if name in needs] if needs else []
        forward = np.where(np.isin(self.events.name[calls], name_codes), self.work.forward[longest], -1)
        # The kernel tells what arguments do not (TF32 or FP32, element type of a list of tensors).
        kernel = (self.work.name[longest], self.work.blocks[longest])
        keys = (*self.ops.keys(calls), *self.ops.keys(forward)[1:], *kernel)
        group, distinct = codes(*keys)
        first = first_rows(group, len(distinct[0]))
        every = [*zip(*(column.tolist() for column in distinct), strict=True)]
        self._count_new(every, distinct, calls[first], forward[first])
        coded = [self._code(self.ops.counted[key]) for key in every]
        item, reason = (
            np.array(codes_, dtype=np.int64)[group][of_row] for codes_ in zip(*coded, strict=True)
        )
        self.item[rows], self.reason[rows] = item, reason
        self.call[rows[item >= 0]] = op[item >= 0]

    def _count_new(self, keys: Sequence[Key], columns: Sequence[Int], ops: Int, forward: Int) -> None:
        """Count the calls that have not been counted yet, those together that differ in sizes alone.

        Args:
            keys: what tells the calls apart, of each.
            columns: the same by column.
            ops: the rows of their ops.
            forward: the rows of their forward ops, -1 for none.
        """
        known = self.ops.counted
        new = np.array([row for row, key in enumerate(keys) if key not in known], dtype=np.int64)
        name, shapes, *others, _ = (column[new] for column in columns)
        for members in self.ops.alike(name, shapes, *others):
            rows = new[members].tolist()
            sizes = [(self.ops.shape_texts[keys[row][1]], keys[row][-1]) for row in rows]
            kernel = self.work.names[keys[rows[0]][-2]]
            counted = self._count(ops.item(rows[0]), sizes, kernel, forward.item(rows[0]))
            known.update(zip((keys[row] for row in rows), counted, strict=True))

    def _count(
        self, op: int, sizes: Sequence[CallSizes], kernel: str, forward: int = -1
    ) -> list[Counted | str]:
        """Calls of an op that differ in sizes alone, or why they cannot be counted.

        Args:
            op: the row of one of them.
            sizes: of each.
            kernel: name of their longest work.
            forward: row of the forward op of that one.
        """
        name = self.ops.name(op)
        model = find(name)
        if model is None:
            return [unknown(name)] * len(sizes)
        # What depends on more than its own arguments is counted anew; so are many sizes, which are quickly
        # counted together and seldom come again.
        depends = model.forward or model.batch or model.inner or (model.groups and self.ops.group_rows)
        if depends or len(sizes) > _MANY_SIZES:
            return self._counted(model, op, sizes, kernel, forward)
        known = _known_calls((model, name, kernel, *self.ops.arguments(op)))
        if len(known) > _MOST_SIZES:
            known.clear()
        if new := [size for size in sizes if size not in known]:
            known.update(zip(new, self._counted(model, op, new, kernel), strict=True))
        return [known[size] for size in sizes]

    def _counted(
        self, model: CostModel, op: int, sizes: Sequence[CallSizes], kernel: str, forward: int = -1
    ) -> list[Counted | str]:
        """What a model says of calls, or why that does not count; arguments as of `_count`."""
        texts, blocks = zip(*sizes, strict=True)
        costs = model.count_alike(self.ops.call(op, kernel, forward=forward), _shapes(texts), blocks)
        name, (dtypes, values, *_) = self.ops.name(op), self.ops.arguments(op)
        counted: list[Counted | str] = []
        for text, cost in zip(texts, costs, strict=True):
            if isinstance(cost, str):
                is_told = text or values or isinstance(cost, Failure)
                counted.append(cost if is_told else NO_SHAPES)
            elif (
                cost.flops > LARGEST_FLOPS
                or max(cost.read_bytes, cost.write_bytes, cost.link_bytes) > LARGEST_BYTES
            ):
                counted.append(BEYOND)
            else:
                counted.append(Counted(name, describe(text, dtypes), cost, cost.note))
        return counted

    def _surroundings(self) -> None:
        """Ops that could not be counted, by an op around them in which nothing else was."""
        rows = self._uncounted
        rows = rows[self.work.op[rows] >= 0]
        if not len(rows):
            return
        parent, depth = self.events.parent, self.events.depth
        taken = with_surroundings(self.events, self.call[(self.item >= 0) & (self.call < len(parent))])
        usable = self.ops.row >= 0
        names = unique(self.events.name[usable]).tolist()
        usable &= np.isin(self.events.name, [name for name in names if find(self.events.names[name])])
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
            for caller in unique(op).tolist():
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
        for kind in unique(item).tolist():
            counted = items[kind]
            note = f"{REPEATED}; {counted.note}" if counted.note else REPEATED
            self._set(rows[item == kind], counted._replace(note=note))
        _, first, of_call = np.unique(call, return_index=True, return_inverse=True)
        self.call[rows] = len(self.events.start) + rows[first][of_call]


CallSizes = tuple[str, int]
"""What tells calls with the same other arguments and kernel apart: shapes, and the kernel's blocks."""
_MANY_SIZES, _MOST_SIZES = 16, 256
"""Of alike calls of one trace, and of all traces, that are kept for the next one."""


@lru_cache(maxsize=1 << 12)
def _known_calls(alike: tuple[Hashable, ...]) -> dict[CallSizes, Counted | str]:
    """What calls of all traces were counted as: the ranks of a job make the same ones.

    `alike` has the cost model and all that such calls share.
    """
    return {}


_COLUMNS = ("shapes", "dtypes", "values", "strides")
_DIGITS = b"0123456789"
_EXPANDED = re.compile(r"0(?<=[\[,\s]0)[\],\s]")


class OpCalls:
    """The recorded ops of one trace."""

    def __init__(self, trace: Trace) -> None:
        table = trace.tables["ops"]
        event = table.array("event_id")
        self.row = trace.arrays.places(event)  # row in the ops table by event row, -1 for what is no op
        self._events, self._event, self._work = trace.arrays, event, trace.work
        self._name, self._names = trace.arrays.name, trace.arrays.names
        self._text: dict[str, Coded] = {name: table.columns[name] for name in _COLUMNS}
        # Strides matter only where a dimension was expanded, which few calls have.
        strides = self._text["strides"]
        expanded = np.array([bool(_EXPANDED.search(text)) for text in strides.values], dtype=bool)
        self._strides = np.where(expanded[strides.codes], strides.codes, -1) if len(expanded) else None
        # What calls were counted as, or why they were not, by their `keys`, forward keys, kernel and blocks.
        self.counted: dict[Key, Counted | str] = {}
        self._known_lists: dict[str, list[list[Any]]] = {}
        self._known_texts: dict[str, list[str]] = {}
        self._batch, self._batches = _serving_batches(trace)
        self.group_rows = trace.meta.group_rows

    def keys(self, op: Int) -> tuple[Int, ...]:
        """What tells two calls of an op apart: codes of its name and arguments; -1 is its own kind."""
        row = self.row[op]
        if (row < 0).all():
            none = np.full(len(op), -1, dtype=np.int64)
            return (lookup(self._name, op, -1).astype(np.int64), none)
        keys = [self._text[name].codes[row] for name in _COLUMNS[:3]]
        if self._strides is not None:
            keys.append(self._strides[row])
        if self._batches:
            keys.append(self._batch[op])
        if self._events.copied.any():
            keys.append(self._events.copied[op].astype(np.int64))
        return tuple(np.where(op >= 0, key, -1).astype(np.int64) for key in (self._name[op], *keys))

    def name(self, op: int) -> str:
        """Name of the op at an event row."""
        name: str = self._names[self._name.item(op)]
        return name

    def recorded(self, op: int) -> bool:
        """Whether any argument of this op was recorded."""
        row = self.row.item(op)
        return bool(self._recorded("shapes", row) or self._recorded("values", row))

    def call(self, op: int, kernel: str = "", blocks: int = -1, forward: int = -1) -> OpCall:
        """The op at an event row as `OpCall`.

        `kernel` is the one it spends its time in, with its thread blocks; `forward` the event row of its
        forward op, -1 if none.
        """
        row, batch = self.row.item(op), self._batch.item(op) if self._batches else -1
        expanded = self._strides is not None and self._strides.item(row) >= 0
        name = self.name(op)
        model = find(name)
        text = self._recorded("values", row)
        values = self._known_texts.get(text)
        if values is None:
            values = self._known_texts[text] = argument_texts(text)
        inner: tuple[OpCall, ...] = ()
        launches: tuple[tuple[str, int], ...] = ()
        if model and model.inner:
            # The ops that this one called, on its thread.
            events, others = self._events, self._event
            thread = (events.tid[others] == events.tid[op]) & (events.pid[others] == events.pid[op])
            within = (events.start[others] >= events.start[op]) & (events.end[others] <= events.end[op])
            called = others[thread & within & (events.depth[others] > events.depth[op])]
            inner = tuple(self.call(other) for other in called[np.argsort(events.start[called])].tolist())
            # Name and thread blocks of the kernels that it launched itself, as they ran.
            work = self._work
            rows = np.flatnonzero((work.op == op) & work.is_kernel)
            rows = rows[np.argsort(work.start[rows], kind="stable")]
            launches = tuple((work.names[work.name[row]], int(work.blocks[row])) for row in rows.tolist())
        return OpCall(
            name,
            shapes=self._lists("shapes", row),
            dtypes=argument_dtypes(self._recorded("dtypes", row)),
            values=values,
            strides=self._lists("strides", row) if expanded else (),
            kernel=kernel,
            blocks=blocks,
            forward=self.call(forward) if forward >= 0 else None,
            batch=self._batches[batch] if batch >= 0 else None,
            inner=inner,
            launches=launches,
            is_replayed=self._events.copied.item(op),
            group_rows=self.group_rows if model and model.groups else {},
        )

    def cost(self, op: int, kernel: str = "", blocks: int = -1, forward: int = -1) -> OpCost | None:
        """What the op at an event row must do at least; None without recorded arguments or a model for them.

        Models that need the arguments of the forward op are left out where that is not given; see `call`.
        """
        if op < 0 or self.row[op] < 0 or not self.recorded(op):
            return None
        model = find(self.name(op))
        if model is None or (model.forward and forward < 0):
            return None
        try:
            return model.count(self.call(op, kernel, blocks, forward if model.forward else -1))
        except Uncounted:
            return None

    def costs(self, ops: Int) -> list[OpCost | None]:
        """`cost` of many ops, those that differ in sizes alone counted together."""
        costs: list[OpCost | None] = [None] * len(ops)
        recorded = np.flatnonzero(lookup(self.row, ops, -1) >= 0)
        if not len(recorded):
            return costs
        name, shapes, *others = self.keys(ops[recorded])
        for members in self.alike(name, shapes, *others):
            rows = recorded[members].tolist()
            same = ops[rows].tolist()
            model = find(self.name(same[0]))
            if model is None or model.forward:
                continue
            if model.inner:  # what they called differs as well
                of_each: Sequence[OpCost | str | None] = [*map(self.cost, same)]
            else:
                shapes_of_each = _shapes([*map(self.shapes_text, same)])
                of_each = model.count_alike(self.call(same[0]), shapes_of_each, [-1] * len(same))
            for row, op, cost in zip(rows, same, of_each, strict=True):
                costs[row] = None if isinstance(cost, str) or not self.recorded(op) else cost
        return costs

    def arguments(self, op: int) -> tuple[str, str, str, bool]:
        """All that is recorded of a call beside its shapes."""
        row = self.row.item(op)
        is_expanded = self._strides is not None and self._strides.item(row) >= 0
        strides = self._recorded("strides", row) if is_expanded else ""
        dtypes, values = (self._recorded(column, row) for column in ("dtypes", "values"))
        return dtypes, values, strides, self._events.copied.item(op)

    @property
    def shape_texts(self) -> Sequence[str]:
        """The recorded shapes that codes of `keys` stand for."""
        return self._text["shapes"].values

    def shapes_text(self, op: int) -> str:
        return self._recorded("shapes", self.row.item(op))

    def alike(self, name: Int, shapes: Int, *others: Int) -> Iterable[Int]:
        """Positions of calls that differ in sizes alone, together; by codes of what calls are told by."""
        used, row = numbered(shapes)
        forms = [
            self.shape_texts[code].encode(errors="surrogatepass").translate(None, _DIGITS) for code in used
        ]
        number = {form: number for number, form in enumerate(dict.fromkeys(forms))}
        structure = np.array([number[form] for form in forms], dtype=np.int64)[row]
        return rows_by_code(codes(name, structure, *others)[0]).values()

    def _recorded(self, column: str, row: int) -> str:
        coded = self._text[column]
        text: str = coded.values[coded.codes.item(row)]
        return text

    def _lists(self, column: str, row: int) -> list[list[Any]]:
        text = self._recorded(column, row)
        lists = self._known_lists.get(text)
        if lists is None:
            lists = self._known_lists[text] = argument_lists(text)
        return lists


def _shapes(texts: Sequence[str]) -> list[list[list[Any]]]:
    """The shapes of the arguments of calls from texts of one structure."""
    every = decoded(f"[{','.join(texts)}]") if len(texts) > 1 else []
    if len(every) != len(texts):  # no list, or none that is recorded
        return [argument_lists(text) for text in texts]
    return [
        [entry if isinstance(entry, list) else [] for entry in shapes] if isinstance(shapes, list) else []
        for shapes in every
    ]


NamedCost = tuple[str, str, OpCost]
"""Name, arguments as text and cost of a call."""
_DIRECTION = re.compile(r"(h|d|p|host|device|peer)to(h|d|p|host|device|peer)")
_NO_LETTERS = re.compile(r"[^a-z]")

NO_MODEL = "no cost model"
"""The one reason that is a hole of tracelens and not of the trace."""
CUSTOM_OP = "custom op without a registered cost model"
REPEATED = "launched before the recording: arguments of the same work at its end"
"""Not a reason but a note: where the arguments are from."""
PARTLY = "launched before the recording began; the GPU recorded only part of its call"
CUT_OFF = "cut off at the edge of the chosen step"
BEYOND = "recorded sizes exceed any memory"
_BEFORE = "launched before the recording began, and not repeated during it"
_NO_OP = "launched outside any recorded op"
_GRAPH = "launched by a graph; --captures or --twin finds the ops"
_NODE = "launched by a graph, and not aligned with its capture"
_NO_SIZES = "communication with no recorded size"
# Ops of these namespaces are PyTorch's own: not to know them is our hole, not the trace's.
_OWN = ("aten::", "c10d::", "quantized::", "prim::")


def costing(trace: Trace, work: Work) -> Costing:
    """Count the GPU work of one rank; all of it is counted once and kept with the trace."""
    if work is trace.work:
        return trace.once(_of_all)
    return _Costing(trace, work).run()


def _of_all(trace: Trace) -> Costing:
    return _Costing(trace, trace.work).run()


def _counted(call_cost: NamedCost) -> Counted:
    name, shapes, cost = call_cost
    return Counted(name, shapes, cost, cost.note)


def _serving_batches(trace: Trace) -> tuple[Int, list[ServingBatch]]:
    """(Batch of each event row, batches) of the ops that need the lengths of the serving step around them.

    -1 for all other events, and where that step's label does not give them.
    """
    events = trace.arrays
    ops = unique(events.name[events.where("op")]).tolist()
    names = [code for code in ops if (model := find(events.names[code])) and model.batch]
    if not names:
        return np.empty(0, dtype=np.int64), []
    # A captured label is that of the capture, not of the step that replays it.
    around = events.where("annotation", "slice", "op") & ~events.copied
    labels = {code: grammar().step(events.names[code]) for code in unique(events.name[around]).tolist()}
    # A label without lengths may stand in one with them; a drafter's are not those of the step around it.
    codes = [code for code, label in labels.items() if label and (label.batch or label.kind == "draft")]
    step = nearest(events.parent, events.depth, around & np.isin(events.name, codes))
    batches = list(dict.fromkeys(label.batch for label in labels.values() if label and label.batch))
    of_name = np.full(len(events.names) + 1, -1, dtype=np.int64)
    for code in codes:
        label = labels[code]
        of_name[code] = batches.index(label.batch) if label and label.batch else -1
    batch = np.where(np.isin(events.name, names), of_name[lookup(events.name, step, -1)], -1)
    return batch, batches


class _Record(NamedTuple):
    """What is read of a record of a collective, see COLLECTIVES."""

    collective: str
    group: str
    group_description: str
    group_ranks: str
    in_split: str
    out_split: str
    dtype: str
    in_bytes: int
    out_bytes: int
    group_size: int


def copies(trace: Trace, work: Work) -> Iterator[tuple[Int, str, NamedCost | str]]:
    """Copies and memsets by the copy engines, those of one name and size together.

    Yields positions in `work`, kind (htod, dtoh, ptop, dtod or memset), cost or why it is not known.
    """
    rows = np.flatnonzero(~work.is_kernel)
    sizes = trace.tables["events"].array("bytes")[work.event[rows]]
    memset = WORK_KINDS.index("memset")
    group, (name, kind, size) = codes(work.name[rows], work.kind[rows], sizes)
    for number in range(len(name)):
        label = work.names[name[number]]
        copy_kind = "memset" if kind[number] == memset else direction(label)
        positions = rows[group == number]
        if size[number] < 0:
            yield positions, copy_kind, "size of the copy not recorded"
        else:
            yield (
                positions,
                copy_kind,
                (label, f"{size[number]:,} bytes", copy_cost(copy_kind, int(size[number]))),
            )


def direction(name: str) -> str:
    """htod, dtoh, ptop or dtod, from the name that a profiler gives a copy; dtod where it does not say."""
    matched = _DIRECTION.search(_NO_LETTERS.sub("", name.lower()))
    return f"{matched[1][0]}to{matched[2][0]}" if matched else "dtod"


def copy_cost(copy_kind: str, size: int) -> OpCost:
    """Cost of a copy or memset of this many bytes."""
    model = find(f"memcpy::{copy_kind}" if copy_kind != "memset" else "memset::device") or find(
        "memcpy::dtod"
    )
    assert model is not None  # the models are tracelens's own
    return model.count(OpCall(model.name, [[size]], ["u8"]))


def collectives(trace: Trace, work: Work) -> Iterator[tuple[Int, NamedCost | str]]:
    """Communication kernels with the record that the profiler made of their sizes.

    Yields positions in `work`, cost or why it is not known.
    """
    table = trace.tables["collectives"]
    if not len(table):
        return
    position_of = trace.arrays.places(work.event)
    kernel = table.array("kernel_id")
    row = lookup(position_of, kernel, -1)
    recorded = np.flatnonzero(row >= 0)
    recorded = recorded[np.argsort(row[recorded], kind="stable")]
    positions, first = np.unique(row[recorded], return_index=True)
    # Most records repeat in each layer and step.
    kind, columns = table.group(*_Record._fields)
    kinds = [*map(_Record, *columns)]
    of_kind: dict[int, NamedCost | str] = {}
    for position, records in zip(positions.tolist(), np.split(recorded, first[1:]), strict=False):
        # Several records of one kernel are one launch of several sends and receives.
        parts = []
        for number in kind[records].tolist():
            if number not in of_kind:
                of_kind[number] = _collective(kinds[number], trace.meta.rank)
            parts.append(of_kind[number])
        counted = [part for part in parts if not isinstance(part, str)]
        if len(counted) < len(parts):
            yield np.array([position]), next(part for part in parts if isinstance(part, str))
            continue
        name, text, cost = counted[0]
        for _, more, added in counted[1:]:
            text = f"{text} {more}"
            cost = cost._replace(
                read_bytes=cost.read_bytes + added.read_bytes,
                write_bytes=cost.write_bytes + added.write_bytes,
                link_bytes=cost.link_bytes + added.link_bytes,
            )
        yield np.array([position]), (name, text, cost)


def _collective(record: _Record, rank: int) -> NamedCost | str:
    """One record of the collectives table."""
    name, size = record.collective, record.group_size
    model = find(f"collective::{name}")
    if model is None:
        return f"unknown collective {name!r}"
    sizes = [record.in_bytes, record.out_bytes]
    if min(sizes) < 0:
        return "size of the collective not recorded"
    group_ranks = integers(record.group_ranks)
    group = group_kind(record.group, record.group_description, group_ranks)
    own_index = group_ranks.index(rank) if rank in group_ranks else -1
    values = [str(size)]
    for split, message in zip((record.in_split, record.out_split), sizes, strict=True):
        # Bytes of the message that are for (or from) other ranks, by its split sizes; "" where not known.
        parts = integers(split)
        known = 0 <= own_index < len(parts) and sum(parts) > 0
        values.append(str(message - message * parts[own_index] // sum(parts)) if known else "")
    call = OpCall(f"collective::{name}", [[size] for size in sizes], ["u8", "u8"], values)
    try:
        cost = model.count(call)
    except Uncounted as why:
        return why.reason
    dtype = short_dtype(record.dtype)
    shown = f"{dtype} {sizes[0]:,} -> {sizes[1]:,} bytes, {size} ranks"
    return f"{name} ({group})", shown, cost._replace(dtype=dtype)


def unknown(op: str) -> str:
    """Why an op without a cost model is not counted."""
    return NO_MODEL if op.startswith(_OWN) else CUSTOM_OP


def lacking(trace: Trace, work: Work, opaque: Bool, unexplained: Bool) -> list[tuple[Int, str]]:
    """What the trace lacks about work that no cost model spoke of: positions in `work` for each reason.

    `opaque` work is in ops without a cost model; communication is told apart from other work there.
    `unexplained` work has neither cost nor reason.
    """
    names = trace.arrays.names
    graph = np.array(["GraphLaunch" in name for name in names], dtype=bool)
    by_graph = (work.launch >= 0) & graph[trace.arrays.name[work.launch]]
    attributed = np.isin(work.launch, unique(work.launch[work.node >= 0]))
    comm = work.kind == WORK_KINDS.index("comm")
    early, late = unexplained & work.unlinked, unexplained & ~work.unlinked
    return [
        (np.flatnonzero(mask), reason)
        for mask, reason in (
            (early, _BEFORE),
            (late & by_graph & ~attributed, _GRAPH),
            (late & by_graph & attributed, _NODE),
            ((late & ~by_graph & comm) | (opaque & comm), _NO_SIZES),
            (late & ~by_graph & ~comm, _NO_OP),
        )
    ]


def cut_off(trace: Trace, work: Work, call: Int) -> Bool:
    """Mask of work whose call a chosen step has only a part of; a whole call's cost is not that part's.

    `call` of each piece is an event row or a number beyond all event rows.
    """
    window, events = trace.window, trace.arrays
    if window is None:
        return np.zeros(len(work.event), dtype=bool)
    links = trace.tables["links"]
    piece, op = links.array("kernel_id"), links.array("op_id")
    outside = (events.start[piece] < window.start) | (events.end[piece] > window.end)
    cut = with_surroundings(events, op[outside])
    across = np.zeros(len(events.start), dtype=bool)
    across[piece[outside]] = True
    of_op: Bool = np.where(call < len(cut), cut[np.minimum(call, len(cut) - 1)], across[work.event])
    return of_op


def with_surroundings(events: Events, rows: Int) -> Bool:
    """Mask of these event rows and of all that they are nested in; -1 is ignored."""
    marked = np.zeros(len(events.start), dtype=bool)
    while len(rows := unique(rows[rows >= 0])):
        rows = rows[~marked[rows]]
        marked[rows] = True
        rows = events.parent[rows]
    return marked


def repeats(work: Work) -> Int:
    """For GPU work whose launch was not recorded, the same work one or more steps later, -1 for none.

    A recording begins and ends between steps, while the GPU still runs the end of the step before. That
    end runs again at the end of the recording: on each stream, the last kernel that was launched too early
    is the last one of the recording, the one before it the one before that, and so on for as long as the
    names agree.
    """
    repeat_of = np.full(len(work.event), -1, dtype=np.int64)
    early = work.unlinked
    if not early.any():
        return repeat_of
    order = ordered(work.device, work.stream, work.start)
    borders = np.flatnonzero(np.diff(work.stream[order]) | np.diff(work.device[order])) + 1
    for rows in np.split(order, borders):
        recorded = np.flatnonzero(~early[rows])
        ahead = int(recorded[0]) if len(recorded) else 0
        count = min(ahead, len(rows) - ahead)
        if not count:
            continue
        lost, repeated = rows[ahead - count : ahead], rows[len(rows) - count :]
        differs = np.flatnonzero((work.name[lost] != work.name[repeated]) | early[repeated])
        start = int(differs[-1]) + 1 if len(differs) else 0
        repeat_of[lost[start:]] = repeated[start:]
    return repeat_of

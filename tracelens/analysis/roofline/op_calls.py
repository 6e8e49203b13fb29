"""The arguments that a trace recorded for its ops, as `OpCall`s for the cost models."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from tracelens.analysis.common import grammar
from tracelens.arrays import Int, lookup
from tracelens.costs import Batch, OpCall, OpCost, Uncounted, find
from tracelens.table import Coded, nearest
from tracelens.trace import Trace, argument_dtypes, argument_lists, argument_texts, describe

_COLUMNS = ("shapes", "dtypes", "values", "strides")
_EXPANDED = re.compile(r"[\[,\s]0[\],\s]")


class OpCalls:
    """The recorded ops of one trace.

    Attributes:
        row: row in the ops table by event row, -1 for events that are no op.
    """

    def __init__(self, trace: Trace) -> None:
        table = trace.tables["ops"]
        event = table.array("event_id")
        self.row = trace.arrays.places(event)
        self._events, self._event, self._work = trace.arrays, event, trace.work
        self._name, self._names = trace.arrays.name, trace.arrays.names
        self._text: dict[str, Coded] = {name: table.columns[name] for name in _COLUMNS}
        self._codes: dict[str, list[int]] = {name: self._text[name].codes.tolist() for name in _COLUMNS}
        # Strides matter only where a dimension was expanded, which few calls have.
        strides = self._text["strides"]
        expanded = np.array([bool(_EXPANDED.search(text)) for text in strides.values], dtype=bool)
        self._strides = np.where(expanded[strides.codes], strides.codes, -1) if len(expanded) else None
        self._known_lists: dict[str, list[list[Any]]] = {}
        self._known_texts: dict[str, list[str]] = {}
        self._batch, self._batches = _serving_batches(trace)

    def keys(self, op: Int) -> tuple[Int, ...]:
        """What tells two calls of the same op apart: codes of its name and recorded arguments.

        Args:
            op: event rows of ops; -1 is a call of its own kind.
        """
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
        name: str = self._names[self._name[op]]
        return name

    def recorded(self, op: int) -> bool:
        """Whether any argument of this op was recorded."""
        row = int(self.row[op])
        return bool(self._recorded("shapes", row) or self._recorded("values", row))

    def call(self, op: int, kernel: str = "", blocks: int = -1, forward: int = -1) -> OpCall:
        """The op at an event row as `OpCall`.

        Args:
            op: event row.
            kernel: name of the kernel it spends its time in.
            blocks: thread blocks of that kernel.
            forward: event row of its forward op, -1 if none.
        """
        row, batch = int(self.row[op]), int(self._batch[op]) if self._batches else -1
        expanded = self._strides is not None and self._strides[row] >= 0
        name = self.name(op)
        model = find(name)
        return OpCall(
            name,
            self._lists("shapes", row),
            argument_dtypes(self._recorded("dtypes", row)),
            self._texts(row),
            self._lists("strides", row) if expanded else (),
            kernel,
            blocks,
            self.call(forward) if forward >= 0 else None,
            self._batches[batch] if batch >= 0 else None,
            *((self._inner(op), self._launches(op)) if model and model.inner else ((), ())),
            bool(self._events.copied[op]),
        )

    def _inner(self, op: int) -> tuple[OpCall, ...]:
        """The ops that this one called, on its thread."""
        events, others = self._events, self._event
        thread = (events.tid[others] == events.tid[op]) & (events.pid[others] == events.pid[op])
        within = (events.start[others] >= events.start[op]) & (events.end[others] <= events.end[op])
        called = others[thread & within & (events.depth[others] > events.depth[op])]
        return tuple(self.call(inner) for inner in called[np.argsort(events.start[called])].tolist())

    def _launches(self, op: int) -> tuple[tuple[str, int], ...]:
        """Name and thread blocks of the kernels that this op itself launched, as they ran."""
        work = self._work
        rows = np.flatnonzero((work.op == op) & work.is_kernel)
        rows = rows[np.argsort(work.start[rows], kind="stable")]
        return tuple((work.names[work.name[row]], int(work.blocks[row])) for row in rows.tolist())

    def cost(self, op: int, kernel: str = "", blocks: int = -1, forward: int = -1) -> OpCost | None:
        """What the op at an event row must do at least; None without recorded arguments or a model for them.

        Models that need the arguments of the forward op are left out where that is not given.

        Args:
            op: event row.
            kernel: as for `call`.
            blocks: as for `call`.
            forward: as for `call`; taken by models that need it only.
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

    def describe(self, op: int) -> str:
        """The tensor arguments of the op at an event row as short text."""
        row = int(self.row[op])
        return describe(self._recorded("shapes", row), self._recorded("dtypes", row))

    def _recorded(self, column: str, row: int) -> str:
        text: str = self._text[column].values[self._codes[column][row]]
        return text

    def _lists(self, column: str, row: int) -> list[list[Any]]:
        text = self._recorded(column, row)
        if text not in self._known_lists:
            self._known_lists[text] = argument_lists(text)
        return self._known_lists[text]

    def _texts(self, row: int) -> list[str]:
        text = self._recorded("values", row)
        if text not in self._known_texts:
            self._known_texts[text] = argument_texts(text)
        return self._known_texts[text]


def _serving_batches(trace: Trace) -> tuple[Int, list[Batch]]:
    """(Batch of each event row, batches) of the ops that need the lengths of the serving step around them.

    -1 for all other events, and where that step's label does not give them.
    """
    events = trace.arrays
    ops = np.unique(events.name[events.where("op")]).tolist()
    names = [code for code in ops if (model := find(events.names[code])) and model.batch]
    if not names:
        return np.empty(0, dtype=np.int64), []
    # A captured label is that of the capture, not of the step that replays it.
    around = events.where("annotation", "slice", "op") & ~events.copied
    labels = {code: grammar().step(events.names[code]) for code in np.unique(events.name[around]).tolist()}
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

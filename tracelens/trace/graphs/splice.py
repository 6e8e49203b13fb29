"""Copies of a template's host events under the graph launch that replays it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tracelens.arrays import Bool, Int, lookup
from tracelens.table import Coded, Table, depths, nearest
from tracelens.trace.graphs.nodes import Template
from tracelens.trace.tables import EVENT_KINDS, EVENT_SOURCES, EVENTS, LINKS, OPS
from tracelens.trace.trace import Trace

_MODULE = "nn.Module: "
_NOT_USER = re.compile(
    r"^<|^nn\.Module: |(?:^|/)(?:torch|triton|functools\.py|contextlib\.py|threading\.py)\b"
)
NODE = EVENT_KINDS.index("node")


class Attribution(NamedTuple):
    """What a replay is a replay of.

    Attributes:
        call: event row of the graph launch.
        work: event rows of its GPU work.
        node: of each, the position of its call in the template, -1 where it is not known.
        template: launch calls of the same graph.
        has_arguments: whether shapes and values hold for this replay, as they do not in another batch size.
        has_frames: whether modules and scopes hold for it, as they do not where layers cannot be told apart.
    """

    call: int
    work: Int
    node: Int
    template: Template
    has_arguments: bool = True
    has_frames: bool = True


class _Copies(NamedTuple):
    """Rows to append for one replay; `event` are rows of the template's trace.

    Attributes:
        parent: position among the copies, -1 for what stands directly under the graph launch.
        work, call: GPU work and the position of its launch call among the copies.
    """

    made: Attribution
    event: Int
    parent: Int
    work: Int
    call: Int
    op: Int


def spliced(trace: Trace, attributions: Sequence[Attribution]) -> Trace:
    """The trace with its replays' host events copied under the graph launches, and its GPU work linked."""
    parts = [copies for made in attributions if len((copies := _copies(made)).event)]
    if not parts:
        return trace
    tables = dict(trace.tables)
    first = len(trace.tables["events"]) + np.cumsum([0, *(len(part.event) for part in parts)])
    tables["events"] = _events(trace, parts, first)
    tables["ops"] = _ops(trace, parts, first)
    tables["links"] = _links(trace, parts, first)
    return Trace(trace.meta, tables, trace.window)


def _copies(made: Attribution) -> _Copies:
    """The calls that are attributed and what stands around them, outermost first."""
    template = made.template
    events = template.trace.arrays
    paired = made.node >= 0
    calls = template.call[made.node[paired]]
    kept = _kept(template) if made.has_frames else events.where("op")
    kept = kept.copy()
    kept[calls] = True
    around = nearest(events.parent, events.depth, kept)
    parent = np.where(events.parent >= 0, around[np.maximum(events.parent, 0)], -1)
    rows = np.unique(calls)
    level = rows
    while len(level := np.unique(parent[level][parent[level] >= 0])):
        rows = np.union1d(rows, level)
    # Two calls may be one event where a twin's call launched several kernels.
    rows = rows[np.lexsort((events.depth[rows], events.start[rows]))]
    position = np.full(len(events.start), -1, dtype=np.int64)
    position[rows] = np.arange(len(rows))
    op = lookup(position, template.op[made.node[paired]], -1)
    return _Copies(made, rows, lookup(position, parent[rows], -1), made.work[paired], position[calls], op)


def _kept(template: Template) -> Bool:
    """Events of the template's trace that are copied: ops, modules, scopes and the user's innermost frame.

    Scopes and frames around the whole capture are the capturing program's, not the replay's; modules are not.
    """
    events = template.trace.arrays
    python = events.where("python")
    module = python & events.named(lambda name: name.startswith(_MODULE))
    user = python & events.named(lambda name: not _NOT_USER.search(name))
    innermost = np.zeros(len(python), dtype=bool)
    frames = nearest(events.parent, events.depth, user)[template.call]
    innermost[frames[frames >= 0]] = True
    around = np.zeros(len(python), dtype=bool)
    row = template.first
    while row >= 0:
        around[row] = True
        row = int(events.parent[row])
    outermost = events.depth == 0 if template.first < 0 else around
    return events.where("op") | module | ((events.where("annotation") | innermost) & ~outermost & ~around)


def _events(trace: Trace, parts: Sequence[_Copies], first: Int) -> Table:
    """The events with the copies behind them, in their order a nanosecond apart inside the launch call."""
    own, old = trace.tables["events"], trace.arrays
    columns = {name: [own.array(name)] for name in own.columns if isinstance(own.columns[name], np.ndarray)}
    texts: dict[str, list[Coded]] = {name: [own.coded(name)] for name in own.columns if name not in columns}
    for part, begin in zip(parts, first.tolist(), strict=False):
        call, source, rows = part.made.call, part.made.template.trace.tables["events"], part.event
        size = len(rows)
        parent = np.where(part.parent >= 0, part.parent + begin, call)
        order = np.minimum(np.arange(size), old.end[call] - old.start[call])
        values = {
            "event_id": np.arange(begin, begin + size),
            "ts_ns": old.start[call] + order,
            "dur_ns": np.zeros(size, dtype=np.int64),
            "pid": np.full(size, old.pid[call]),
            "tid": np.full(size, old.tid[call]),
            "blocks": source.array("blocks")[rows],
            "parent_id": parent,
            "linked": np.zeros(size, dtype=bool),
        }
        for name, column in columns.items():
            column.append(values.get(name, np.full(size, -1)))
        kind = source.coded("kind").take(rows)
        is_call = np.zeros(size, dtype=bool)
        is_call[part.call] = True
        kinds = np.where(
            is_call, NODE, np.array([EVENT_KINDS.index(text) for text in kind.values])[kind.codes]
        )
        texts["kind"].append(Coded(kinds, EVENT_KINDS))
        for name in ("category", "name"):
            texts[name].append(Coded.used(source.coded(name).codes[rows], source.coded(name).values))
        label = EVENT_SOURCES.index(part.made.template.source)
        texts["source"].append(Coded(np.full(size, label), EVENT_SOURCES))
    data = {name: np.concatenate(column) for name, column in columns.items()}
    data["depth"] = depths(data["parent_id"])
    return EVENTS.table(data | {name: Coded.concat(column) for name, column in texts.items()})


def _ops(trace: Trace, parts: Sequence[_Copies], first: Int) -> Table:
    """Arguments of the copied ops; none where the template is of another batch size."""
    own = trace.tables["ops"]
    numbers = {name: [own.array(name)] for name in ("event_id", "sequence", "forward_thread")}
    texts = {name: [own.coded(name)] for name in ("shapes", "dtypes", "strides", "values")}
    for part, begin in zip(parts, first.tolist(), strict=False):
        template = part.made.template.trace
        ops = template.tables["ops"]
        of_event = np.full(len(template.arrays.start), -1, dtype=np.int64)
        of_event[ops.array("event_id")] = np.arange(len(ops))
        row = of_event[part.event]
        numbers["event_id"].append(np.flatnonzero(row >= 0) + begin)
        row = row[row >= 0]
        for name in ("sequence", "forward_thread"):
            numbers[name].append(ops.array(name)[row])
        for name, columns in texts.items():
            column = ops.coded(name)
            taken = Coded.used(column.codes[row], column.values)
            columns.append(taken if part.made.has_arguments else Coded.of([""] * len(row)))
    data = {name: np.concatenate(columns) for name, columns in numbers.items()}
    return OPS.table(data | {name: Coded.concat(columns) for name, columns in texts.items()})


def _links(trace: Trace, parts: Sequence[_Copies], first: Int) -> Table:
    """The links with the op and the call of each attributed node; what launched it stays the graph launch."""
    links = trace.tables["links"]
    row = np.full(len(trace.tables["events"]), -1, dtype=np.int64)
    row[links.array("kernel_id")] = np.arange(len(links))
    data = {
        name: links.array(name).copy()
        for name in ("kernel_id", "launch_id", "op_id", "call_id", "forward_op_id")
    }
    for part, begin in zip(parts, first.tolist(), strict=False):
        data["call_id"][row[part.work]] = part.call + begin
        data["op_id"][row[part.work]] = np.where(part.op >= 0, part.op + begin, -1)
    return LINKS.table(data)

"""Copies of a template's host events under the graph launch that replays it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

import numpy as np

from tracelens.arrays import Bool, Int, lookup
from tracelens.table import Coded, Table, depths, nearest
from tracelens.trace.arguments import describe
from tracelens.trace.graphs.collectives import Replayed, collectives
from tracelens.trace.graphs.nodes import Template, forward_op
from tracelens.trace.names import STEP_MARK
from tracelens.trace.tables import EVENT_KINDS, EVENT_SOURCES, EVENTS, LINKS, OPS
from tracelens.trace.trace import Trace

_MODULE = "nn.Module: "
_NOT_USER = re.compile(
    r"^<|^nn\.Module: |(?:^|/)(?:torch|triton|functools\.py|contextlib\.py|threading\.py)\b"
)
NODE = EVENT_KINDS.index("node")


class Arguments(Enum):
    """Whether the arguments of a template's ops hold for a replay.

    RECORDED: they do. INFERRED: they are of another batch size. NONE: templates disagree.
    """

    RECORDED, INFERRED, NONE = range(3)


class Attribution(NamedTuple):
    """What a replay is a replay of.

    Attributes:
        call: event row of the graph launch.
        work: event rows of its GPU work.
        node: of each, the position of its call in the template, -1 where it is not known.
        template: launch calls of the same graph.
        arguments: whether shapes and values hold for this replay.
        has_frames: whether modules and scopes hold for it, as they do not where layers cannot be told apart.
    """

    call: int
    work: Int
    node: Int
    template: Template
    arguments: Arguments = Arguments.RECORDED
    has_frames: bool = True


class _Pattern(NamedTuple):
    """What is copied for each replay of one graph; `event` are rows of the template's trace, outermost first.

    Attributes:
        parent: position among the copies, -1 for what stands directly under the graph launch.
        behind: position behind the last copy inside each.
        paired: which of the replay's nodes are attributed.
        call, op, forward: of these, the positions of the launch call and its op, and the event row of the
            forward op in the template's trace; -1 for none.
        position: of each event of the template's trace, its position among the copies, -1 for none.
    """

    event: Int
    parent: Int
    behind: Int
    paired: Bool
    call: Int
    op: Int
    forward: Int
    position: Int


class _Copies(NamedTuple):
    """The copies for one replay."""

    made: Attribution
    pattern: _Pattern


def spliced(trace: Trace, attributions: Sequence[Attribution]) -> Trace:
    """The trace with its replays' host events copied under the graph launches, and its GPU work linked."""
    patterns: dict[tuple[int, bytes, bool], _Pattern] = {}
    parts = []
    for made in attributions:
        key = (id(made.template), made.node.tobytes(), made.has_frames)
        if key not in patterns:
            patterns[key] = _pattern(made)
        if len(patterns[key].event):
            parts.append(_Copies(made, patterns[key]))
    if not parts:
        return trace
    tables = dict(trace.tables)
    first = len(trace.tables["events"]) + np.cumsum([0, *(len(part.pattern.event) for part in parts)])
    tables["events"] = _events(trace, parts, first)
    tables["ops"] = _ops(trace, parts, first)
    tables["links"] = _links(trace, parts, first)
    replayed = [
        Replayed(
            part.made.template.trace,
            part.pattern.event,
            begin,
            part.pattern.op,
            part.made.work[part.pattern.paired],
            part.made.arguments is Arguments.RECORDED,
        )
        for part, begin in zip(parts, first.tolist(), strict=False)
    ]
    tables["collectives"] = collectives(trace, tables["events"].array("ts_ns"), replayed)
    return Trace(trace.meta, tables, trace.window)


def _pattern(made: Attribution) -> _Pattern:
    """The calls that are attributed and what stands around them."""
    template = made.template
    events = template.trace.arrays
    paired = made.node >= 0
    node = made.node[paired]
    calls = template.call[node]
    kept = (_kept(template) if made.has_frames else events.where("op")).copy()
    kept[calls] = True
    around = nearest(events.parent, events.depth, kept)
    parent = lookup(around, events.parent, -1)
    rows = level = np.unique(calls)  # a twin's call may launch several kernels
    while len(level := np.unique(parent[level][parent[level] >= 0])):
        rows = np.union1d(rows, level)
    rows = rows[np.lexsort((events.depth[rows], events.start[rows]))]
    position = np.full(len(events.start), -1, dtype=np.int64)
    position[rows] = np.arange(len(rows))
    own_parent = lookup(position, parent[rows], -1)
    behind = np.arange(1, len(rows) + 1)
    for row in range(len(rows) - 1, -1, -1):
        if own_parent[row] >= 0:
            behind[own_parent[row]] = max(behind[own_parent[row]], behind[row])
    op = template.op[node]
    forward = lookup(forward_op(template.trace), op, -1)
    return _Pattern(
        rows, own_parent, behind, paired, position[calls], lookup(position, op, -1), forward, position
    )


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
    scopes = events.where("annotation") & ~events.named(STEP_MARK.match)
    return events.where("op") | module | ((scopes | innermost) & ~_around(template))


def _around(template: Template) -> Bool:
    """Events around the call that began a capture, and around all calls of a twin."""
    parent = template.trace.arrays.parent
    mask = np.zeros(len(parent), dtype=bool)
    rows = np.array([template.first]) if template.first >= 0 else np.unique(template.call)
    count = np.zeros(len(parent), dtype=np.int64)
    ancestor = rows
    while len(ancestor := ancestor[ancestor >= 0]):
        np.add.at(count, ancestor, 1)
        ancestor = parent[ancestor]
    mask[count == len(rows)] = True
    return mask


def _events(trace: Trace, parts: Sequence[_Copies], first: Int) -> Table:
    """The events with the copies behind them.

    Copies begin with the launch call in their order, a nanosecond apart, and last as long as those inside:
    that is no time of the host, and says only what is inside of what, and in which order.
    """
    own, old = trace.tables["events"], trace.arrays
    columns = {name: [own.array(name)] for name in own.columns if isinstance(own.columns[name], np.ndarray)}
    texts: dict[str, list[Coded]] = {name: [own.coded(name)] for name in own.columns if name not in columns}
    for part, begin in zip(parts, first.tolist(), strict=False):
        call, source, pattern = part.made.call, part.made.template.trace.tables["events"], part.pattern
        rows, size = pattern.event, len(pattern.event)
        parent = np.where(pattern.parent >= 0, pattern.parent + begin, call)
        values = {
            "event_id": np.arange(begin, begin + size),
            "ts_ns": old.start[call] + np.arange(size),
            "dur_ns": pattern.behind - np.arange(size),
            "pid": np.full(size, old.pid[call]),
            "tid": np.full(size, old.tid[call]),
            "blocks": source.array("blocks")[rows]
            if part.made.arguments is Arguments.RECORDED
            else np.full(size, -1),
            "parent_id": parent,
            "linked": np.zeros(size, dtype=bool),
        }
        for name, column in columns.items():
            column.append(values.get(name, np.full(size, -1)))
        kind = source.coded("kind").take(rows)
        is_call = np.zeros(size, dtype=bool)
        is_call[pattern.call] = True
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
    """Arguments of the copied ops; where the template is of another batch size only as text."""
    own = trace.tables["ops"]
    numbers = {name: [own.array(name)] for name in ("event_id", "sequence", "forward_thread")}
    texts = {name: [own.coded(name)] for name in ("shapes", "dtypes", "strides", "values")}
    inferred = [own.coded("inferred")]
    for part, begin in zip(parts, first.tolist(), strict=False):
        template = part.made.template.trace
        ops = template.tables["ops"]
        of_event = np.full(len(template.arrays.start), -1, dtype=np.int64)
        of_event[ops.array("event_id")] = np.arange(len(ops))
        row = of_event[part.pattern.event]
        numbers["event_id"].append(np.flatnonzero(row >= 0) + begin)
        row = row[row >= 0]
        for name in ("sequence", "forward_thread"):
            numbers[name].append(ops.array(name)[row])
        for name, columns in texts.items():
            column = ops.coded(name)
            taken = Coded.used(column.codes[row], column.values)
            columns.append(taken if part.made.arguments is Arguments.RECORDED else Coded.of([""] * len(row)))
        is_inferred = part.made.arguments is Arguments.INFERRED
        inferred.append(Coded.of(_described(ops, row) if is_inferred else [""] * len(row)))
    data = {name: np.concatenate(columns) for name, columns in numbers.items()}
    texts["inferred"] = inferred
    return OPS.table(data | {name: Coded.concat(columns) for name, columns in texts.items()})


def _described(ops: Table, row: Int) -> list[str]:
    shapes, dtypes = ops.texts("shapes", row), ops.texts("dtypes", row)
    return [describe(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]


def _links(trace: Trace, parts: Sequence[_Copies], first: Int) -> Table:
    """The links with the op and the call of each attributed node; what launched it stays the graph launch."""
    links = trace.tables["links"]
    row = np.full(len(trace.tables["events"]), -1, dtype=np.int64)
    row[links.array("kernel_id")] = np.arange(len(links))
    data = {
        name: links.array(name).copy()
        for name in ("kernel_id", "launch_id", "op_id", "call_id", "forward_op_id")
    }
    for number, (part, begin) in enumerate(zip(parts, first.tolist(), strict=False)):
        pattern, work = part.pattern, row[part.made.work[part.pattern.paired]]
        data["call_id"][work] = pattern.call + begin
        data["op_id"][work] = np.where(pattern.op >= 0, pattern.op + begin, -1)
        data["forward_op_id"][work] = _forward(parts, first, number)
    return LINKS.table(data)


def _forward(parts: Sequence[_Copies], first: Int, number: int) -> Int:
    """Forward op behind each attributed node: its copy under the last graph launch before that has one."""
    part = parts[number]
    wanted = part.pattern.forward
    forward = np.full(len(wanted), -1, dtype=np.int64)
    for earlier in range(number, -1, -1):
        if not ((wanted >= 0) & (forward < 0)).any():
            break
        pattern, template = parts[earlier].pattern, parts[earlier].made.template
        if template.trace is part.made.template.trace:
            position = lookup(pattern.position, wanted, -1)
            forward = np.where((forward < 0) & (position >= 0), position + first[earlier], forward)
    return forward

"""Copies of a template's host events and collectives under the graph launch that replays it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from tracelens.arrays import Bool, Int, lookup, ordered, unique
from tracelens.table import Coded, Table, depths, nearest
from tracelens.trace.graphs.nodes import Template, forward_op
from tracelens.trace.trace import (
    COLLECTIVES,
    EVENT_KINDS,
    EVENT_SOURCES,
    EVENTS,
    LINKS,
    OPS,
    STEP_MARK,
    Trace,
    describe,
    rows_by_code,
)

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
    """What a replay is a replay of."""

    call: int  # event row of the graph launch
    work: Int  # event rows of its GPU work
    node: Int  # of each, the position of its call in the template, -1 where it is not known
    template: Template  # launch calls of the same graph
    arguments: Arguments = Arguments.RECORDED  # whether shapes and values hold for this replay
    # whether modules and scopes hold for it, as they do not where layers cannot be told apart
    has_frames: bool = True


class _Pattern(NamedTuple):
    """What is copied for each replay of one graph."""

    event: Int  # rows of the template's trace, outermost first
    parent: Int  # position among the copies, -1 for what stands directly under the graph launch
    behind: Int  # position behind the last copy inside each
    paired: Bool  # which of the replay's nodes are attributed
    call: Int  # of these, the position of the launch call
    op: Int  # and of its op, -1 for none
    forward: Int  # and the event row of its forward op in the template's trace, -1 for none
    position: Int  # of each event of the template's trace, its position among the copies, -1 for none


class Replayed(NamedTuple):
    """The attributed work of a replay."""

    template: Trace  # where the graph was captured
    event: Int  # rows of the template's events that are copied
    first: int  # row of the first copy
    op: Int  # of each piece of work, the position of its op among the copies, -1 for none
    work: Int  # event row of each piece
    has_arguments: bool  # whether sizes hold for this replay


def spliced(trace: Trace, attributions: Sequence[Attribution]) -> Trace:
    """The trace with its replays' host events copied under the graph launches, and its GPU work linked."""
    patterns: dict[tuple[int, bytes, bool], _Pattern] = {}
    parts: list[tuple[Attribution, _Pattern]] = []
    for made in attributions:
        key = (id(made.template), made.node.tobytes(), made.has_frames)
        if key not in patterns:
            patterns[key] = _pattern(made)
        if len(patterns[key].event):
            parts.append((made, patterns[key]))
    if not parts:
        return trace
    tables = dict(trace.tables)
    first = len(trace.tables["events"]) + np.cumsum([0, *(len(pattern.event) for _, pattern in parts)])
    tables["events"] = _events(trace, parts, first)
    tables["ops"] = _ops(trace, parts, first)
    tables["links"] = _links(trace, parts, first)
    replayed = [
        Replayed(
            template=made.template.trace,
            event=pattern.event,
            first=begin,
            op=pattern.op,
            work=made.work[pattern.paired],
            has_arguments=made.arguments is Arguments.RECORDED,
        )
        for (made, pattern), begin in zip(parts, first.tolist(), strict=False)
    ]
    tables["collectives"] = collectives(trace, tables["events"].array("ts_ns"), replayed)
    # What was noted of the calls that were copied holds for them here.
    noted = [made.template.trace.meta.group_rows for made, _ in parts]
    group_rows = {rows: filled for known in (*noted, trace.meta.group_rows) for rows, filled in known.items()}
    return Trace(replace(trace.meta, group_rows=group_rows), tables, trace.window)


def _pattern(made: Attribution) -> _Pattern:
    """The calls that are attributed and what stands around them.

    Those are ops, modules, scopes and the user's innermost frame. Scopes and frames around the whole capture
    are the capturing program's, not the replay's; modules are not.
    """
    template = made.template
    events = template.trace.arrays
    paired = made.node >= 0
    node = made.node[paired]
    calls = template.call[node]
    kept = events.where("op")
    if made.has_frames:
        python = events.where("python")
        module = python & events.named(lambda name: name.startswith(_MODULE))
        user = python & events.named(lambda name: not _NOT_USER.search(name))
        innermost = np.zeros(len(python), dtype=bool)
        frames = nearest(events.parent, events.depth, user)[template.call]
        innermost[frames[frames >= 0]] = True
        scopes = events.where("annotation") & ~events.named(STEP_MARK.match)
        # Events around the call that began a capture, and around all calls of a twin.
        enclosed = np.array([template.first]) if template.first >= 0 else unique(template.call)
        inside = np.zeros(len(python), dtype=np.int64)
        ancestor = enclosed
        while len(ancestor := ancestor[ancestor >= 0]):
            np.add.at(inside, ancestor, 1)
            ancestor = events.parent[ancestor]
        kept |= module | ((scopes | innermost) & (inside != len(enclosed)))
    kept[calls] = True
    around = nearest(events.parent, events.depth, kept)
    parent = lookup(around, events.parent, -1)
    rows = level = unique(calls)  # a twin's call may launch several kernels
    while len(level := unique(parent[level][parent[level] >= 0])):
        rows = unique(np.concatenate((rows, level)))
    rows = rows[ordered(events.start[rows], events.depth[rows])]
    position = events.places(rows)
    own_parent = lookup(position, parent[rows], -1)
    behind = np.arange(1, len(rows) + 1)
    for row in range(len(rows) - 1, -1, -1):
        if own_parent[row] >= 0:
            behind[own_parent[row]] = max(behind[own_parent[row]], behind[row])
    op = template.op[node]
    forward = lookup(template.trace.once(forward_op), op, -1)
    return _Pattern(
        event=rows,
        parent=own_parent,
        behind=behind,
        paired=paired,
        call=position[calls],
        op=lookup(position, op, -1),
        forward=forward,
        position=position,
    )


def _events(trace: Trace, parts: Sequence[tuple[Attribution, _Pattern]], first: Int) -> Table:
    """The events with the copies behind them.

    Copies begin with the launch call in their order, a nanosecond apart, and last as long as those inside:
    that is no time of the host, and says only what is inside of what, and in which order.
    """
    own, old = trace.tables["events"], trace.arrays
    columns = {name: [own.array(name)] for name in own.columns if isinstance(own.columns[name], np.ndarray)}
    texts: dict[str, list[Coded]] = {name: [own.coded(name)] for name in own.columns if name not in columns}
    for (made, pattern), begin in zip(parts, first.tolist(), strict=False):
        call, source = made.call, made.template.trace.tables["events"]
        rows, size = pattern.event, len(pattern.event)
        parent = np.where(pattern.parent >= 0, pattern.parent + begin, call)
        values = {
            "event_id": np.arange(begin, begin + size),
            "ts_ns": old.start[call] + np.arange(size),
            "dur_ns": pattern.behind - np.arange(size),
            "pid": np.full(size, old.pid[call]),
            "tid": np.full(size, old.tid[call]),
            "blocks": source.array("blocks")[rows]
            if made.arguments is Arguments.RECORDED
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
        label = EVENT_SOURCES.index(made.template.source)
        texts["source"].append(Coded(np.full(size, label), EVENT_SOURCES))
    data = {name: np.concatenate(column) for name, column in columns.items()}
    data["depth"] = depths(data["parent_id"])
    return EVENTS.table(data | {name: Coded.concat(column) for name, column in texts.items()})


def _ops(trace: Trace, parts: Sequence[tuple[Attribution, _Pattern]], first: Int) -> Table:
    """Arguments of the copied ops; where the template is of another batch size only as text."""
    own = trace.tables["ops"]
    numbers = {name: [own.array(name)] for name in ("event_id", "sequence", "forward_thread")}
    texts = {name: [own.coded(name)] for name in ("shapes", "dtypes", "strides", "values")}
    inferred = [own.coded("inferred")]
    for (made, pattern), begin in zip(parts, first.tolist(), strict=False):
        template = made.template.trace
        ops = template.tables["ops"]
        row = template.arrays.places(ops.array("event_id"))[pattern.event]
        numbers["event_id"].append(np.flatnonzero(row >= 0) + begin)
        row = row[row >= 0]
        for name in ("sequence", "forward_thread"):
            numbers[name].append(ops.array(name)[row])
        for name, columns in texts.items():
            column = ops.coded(name)
            taken = Coded.used(column.codes[row], column.values)
            columns.append(taken if made.arguments is Arguments.RECORDED else Coded.of([""] * len(row)))
        described = [""] * len(row)
        if made.arguments is Arguments.INFERRED:
            described = list(map(describe, ops.texts("shapes", row), ops.texts("dtypes", row)))
        inferred.append(Coded.of(described))
    data = {name: np.concatenate(columns) for name, columns in numbers.items()}
    texts["inferred"] = inferred
    return OPS.table(data | {name: Coded.concat(columns) for name, columns in texts.items()})


def _links(trace: Trace, parts: Sequence[tuple[Attribution, _Pattern]], first: Int) -> Table:
    """The links with the op and the call of each attributed node; what launched it stays the graph launch."""
    links = trace.tables["links"]
    row = trace.arrays.places(links.array("kernel_id"))
    data = {
        name: links.array(name).copy()
        for name in ("kernel_id", "launch_id", "op_id", "call_id", "forward_op_id")
    }
    for number, ((made, pattern), begin) in enumerate(zip(parts, first.tolist(), strict=False)):
        work = row[made.work[pattern.paired]]
        data["call_id"][work] = pattern.call + begin
        data["op_id"][work] = np.where(pattern.op >= 0, pattern.op + begin, -1)
        # Forward op behind each node: its copy under the last graph launch before that has one.
        wanted, template = pattern.forward, made.template.trace
        forward = np.full(len(wanted), -1, dtype=np.int64)
        for earlier in range(number, -1, -1):
            if not ((wanted >= 0) & (forward < 0)).any():
                break
            other, copied = parts[earlier]
            if other.template.trace is template:
                position = lookup(copied.position, wanted, -1)
                forward = np.where((forward < 0) & (position >= 0), position + first[earlier], forward)
        data["forward_op_id"][work] = forward
    return LINKS.table(data)


def collectives(trace: Trace, start: Int, replays: Sequence[Replayed]) -> Table:
    """The collectives of the trace and of its replays, each with its kernel, in order of `start` (ns)."""
    own = trace.tables["collectives"]
    recorded = unique(own.array("kernel_id"))
    copied = []
    for replay in replays:
        records = replay.template.tables["collectives"]
        # A collective of several kernels has its last one, as where it is recorded.
        kernel = np.full(len(replay.event) + 1, -1, dtype=np.int64)
        kernel[replay.op] = replay.work  # of work without an op behind the end
        copy = lookup(replay.template.arrays.places(replay.event), records.array("event_id"), -1)
        of_record = np.where(copy >= 0, kernel[copy], -1)
        kept = (of_record >= 0) & ~np.isin(of_record, recorded)
        columns = {
            **records.take(kept).columns,
            "event_id": copy[kept] + replay.first,
            "kernel_id": of_record[kept],
        }
        if not replay.has_arguments:
            columns |= {name: np.full(len(columns["event_id"]), -1) for name in ("in_bytes", "out_bytes")}
            nothing = Coded.of([""] * len(columns["event_id"]))
            columns |= {"in_split": nothing, "out_split": nothing}
        copied.append(Table(COLLECTIVES, columns))
    if not any(map(len, copied)):
        return own
    table = COLLECTIVES.concat([part.columns for part in (own, *copied)])
    event = table.array("event_id")
    table = table.take(ordered(start[event], event))
    order = np.empty(len(table), dtype=np.int64)
    for rows in rows_by_code(table.coded("group").codes.astype(np.int64)).values():
        order[rows] = np.arange(len(rows))
    return Table(COLLECTIVES, {**table.columns, "order": order})

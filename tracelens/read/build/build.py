"""Decoded columns to the tables of a `Trace`: what every JSON format shares."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from tracelens.arrays import Bool, Int, lookup
from tracelens.errors import ParseError
from tracelens.read.build.collectives import collectives_table
from tracelens.read.build.cpu_only import host_side
from tracelens.read.build.header import device_names, distributed, program
from tracelens.read.build.losses import reported_losses
from tracelens.read.build.pairs import pair_begin_end
from tracelens.read.build.rows import EventRows
from tracelens.read.build.software import software_of
from tracelens.read.build.unread import unread_device_events
from tracelens.read.json import (
    FIRST_NS,
    LAST_NS,
    MISSING,
    OUT_OF_RANGE,
    SEPARATOR,
    Columns,
    Encoded,
    Splitter,
    integer,
    ranks_of_header,
    summable,
)
from tracelens.read.pace import pace_of
from tracelens.table import Coded, Table, nearest
from tracelens.trace import (
    EVENT_KINDS,
    EVENTS,
    GPU_KINDS,
    LAUNCHES,
    LINKS,
    OPS,
    PASSED_THROUGH,
    STACK_KINDS,
    Calls,
    Flows,
    Trace,
    TraceMeta,
    find_launches,
    find_ops,
    forward_ops,
    is_linked,
    launches_by_flow,
    nest,
)

OVERRUN_NS = 1_000_000
"""GPU work that lasts this far into the next one on its stream has a corrupt duration (seen on ROCm)."""


class Dialect(NamedTuple):
    """How one format names things.

    Attributes:
        name: of the format.
        kinds: the profiler's category to ours (tables.KINDS), lower case; others are slices.
        launch_flows: categories of the arrows from launch calls to GPU work.
        accelerators: how categories of events on accelerators begin, known or not.
    """

    name: str
    kinds: Mapping[str, str]
    launch_flows: frozenset[str] = frozenset()
    accelerators: re.Pattern[str] = re.compile(r"(?!)")


def build(splitter: Splitter, table: Encoded, dialect: Dialect) -> Trace:
    """Assemble the trace.

    Raises:
        ParseError: no intact event, or the work of its devices is of categories that are not known.
    """
    rows = _select(table)
    if not len(rows.source):
        lost = ", ".join(f"{count} {reason}" for reason, count in rows.dropped.items())
        why = "; ".join([*splitter.problems, *([f"dropped: {lost}"] if lost else [])])
        raise ParseError(splitter.source.path, f"no intact trace event{f' ({why})' if why else ''}")
    kind, unread = _kinds(splitter, table, rows, dialect)
    pids, tids, threads = _threads(table)
    pid, tid = pids[rows.table.pid], tids[rows.table.tid]
    thread = _dense(pids)[rows.table.pid] * len(tids) + _dense(tids)[rows.table.tid]
    gpu = np.isin(kind, [EVENT_KINDS.index(name) for name in GPU_KINDS])
    rows = _without_absurd_sizes(rows, gpu)
    device = np.where(gpu, np.where(rows.table.device >= 0, rows.table.device, pid), -1)
    stream = np.where(gpu, np.where(rows.table.stream != -1, rows.table.stream, tid), -1)
    rows = _clip_overruns(rows, gpu, device, stream)
    start, end = rows.table.ts_ns, rows.table.ts_ns + rows.table.dur_ns
    parent, depth = _nest(kind, thread, start, end)
    calls = _calls(table, rows, kind, parent, depth)
    flows = _flows(table, dialect, pids, tids)
    link, linked = _link(gpu, calls, flows, (pid, tid, start))
    ops = _ops(table, rows, kind)
    cpu_only = host_side(table, rows, kind, (thread, tid, end), calls)
    link = cpu_only.link if cpu_only else link
    link["call_id"] = np.full(len(link["op_id"]), -1, dtype=np.int64)
    link["forward_op_id"] = _forward(link["op_id"], ops, thread, start, (parent, depth))
    events = EVENTS.table(
        {
            "event_id": np.arange(len(start)),
            "kind": Coded(kind, EVENT_KINDS),
            "category": Coded.merged(rows.table.category, table.categories),
            "name": Coded.merged(rows.table.name, [name or "(no name)" for name in table.names]),
            "ts_ns": start,
            "dur_ns": rows.table.dur_ns,
            "pid": pid,
            "tid": tid,
            "device": device,
            "stream": stream,
            "bytes": rows.table.bytes,
            "blocks": rows.table.blocks,
            "parent_id": parent,
            "depth": depth,
            "correlation_id": rows.table.correlation,
            "linked": linked,
            "source": Coded(np.zeros(len(start), dtype=np.int64), ("trace",)),
        }
    )
    records = table.collectives
    if cpu_only and not records:
        records = cpu_only.collectives(distributed(splitter.header | splitter.tail))
    collectives = collectives_table(records, rows.source, link, events, rows.repaired)
    meta = _meta(splitter, table, rows, dialect, threads, unread)
    tables = {"events": events, "ops": ops, "collectives": collectives, "links": LINKS.table(link)}
    tables["launches"] = _launches(table, rows, kind)
    return Trace(replace(meta, cpu_only=cpu_only is not None), tables)


def _select(table: Encoded) -> EventRows:
    """Choose the events that become rows; count the rest by reason."""
    columns = table.columns
    dropped = Counter(drop.reason for drop in table.drops)
    first_drop = {drop.reason: drop.offset for drop in reversed(table.drops)}
    repaired = Counter(table.repaired)
    codes = {name: columns.phase == code for code, name in enumerate(table.phases)}
    nothing = np.zeros(len(columns.phase), dtype=bool)

    def of(*names: str) -> Bool:
        mask: Bool = np.logical_or.reduce([codes.get(name, nothing) for name in names])
        return mask

    ts, dur = columns.ts_ns, columns.dur_ns
    outside = (ts != MISSING) & ((ts < FIRST_NS) | (ts >= LAST_NS))
    columns = columns._replace(ts_ns=np.where(outside, MISSING, ts))
    timed = columns.ts_ns != MISSING
    complete, instant = of("X"), of("i", "I", "R")
    used = of("s", "f", "t", "M")
    dur = np.where(instant, 0, dur)
    lacking = complete & timed & (dur == MISSING)
    row = (complete & timed & ~lacking) | (instant & timed)
    paired, unpaired = pair_begin_end(table, columns)
    _count(dropped, "start time out of range", (complete | instant) & outside)
    _count(dropped, "no start time", (complete | instant) & ~timed & ~outside)
    _count(dropped, "complete event without duration", lacking)
    _count(dropped, "begin or end without its partner", unpaired)
    dropped.update(table.unused)
    row[paired.begin] = True
    dur = dur.copy()
    dur[paired.begin] = paired.dur_ns
    source = np.flatnonzero(row)
    endless = source[~summable(dur[source])]
    row[endless] = False
    dropped["duration out of range"] += len(endless) + int((~row[paired.begin]).sum())
    source = np.flatnonzero(row)
    negative = dur[source] < 0
    _count(repaired, "negative duration set to 0", negative)
    no_name = np.array([not name for name in table.names], dtype=bool)
    _count(repaired, "no name", no_name[columns.name[source]])
    picked = Columns(*(column[source] for column in columns))._replace(dur_ns=np.maximum(dur[source], 0))
    kept = int(row.sum() + used.sum() + row[paired.begin].sum())
    return EventRows(picked, source, +dropped, first_drop, repaired, kept)


def _count(counter: Counter[str], reason: str, mask: Bool) -> None:
    if count := int(mask.sum()):
        counter[reason] += count


def _without_absurd_sizes(rows: EventRows, gpu: Bool) -> EventRows:
    """Leave out sizes of copies and grids of kernels that no sum could hold."""
    columns = rows.table
    for name in ("bytes", "blocks"):
        values = getattr(columns, name)
        absurd = gpu & ~summable(np.where(gpu, values, -1))
        absurd |= values < -1
        _count(rows.repaired, OUT_OF_RANGE, absurd)
        columns = columns._replace(**{name: np.where(absurd, -1, values)})
    return rows._replace(table=columns)


def _kinds(
    splitter: Splitter, table: Encoded, rows: EventRows, dialect: Dialect
) -> tuple[Int, tuple[str, ...]]:
    """Kind of each row, and what is not read of devices; raises ParseError where that is all they did."""
    known = [EVENT_KINDS.index(dialect.kinds.get(name.lower(), "slice")) for name in table.categories]
    kind = np.array(known, dtype=np.int64)[rows.table.category]
    path, kinds = splitter.source.path, dialect.kinds
    return kind, unread_device_events(path, table, rows, kind, kinds, dialect.accelerators)


def _threads(table: Encoded) -> tuple[Int, Int, dict[tuple[int, int], str]]:
    """Process and thread ids as integers, and the names that metadata events give them."""
    number: dict[int | str, int] = {}
    for value in [*table.pids, *table.tids, *(item for entry in table.metadata for item in entry[1:3])]:
        if isinstance(value, str) and value not in number:
            number[value] = -2 - len(number)

    def to_int(value: int | str) -> int:
        return number[value] if isinstance(value, str) else value

    names = {
        (to_int(pid), to_int(tid)): label for kind, pid, tid, label in table.metadata if kind == "thread_name"
    }
    pids = np.array([to_int(value) for value in table.pids], dtype=np.int64)
    return pids, np.array([to_int(value) for value in table.tids], dtype=np.int64), names


def _dense(ids: Int) -> Int:
    """Equal ids to equal small numbers: profilers write one thread as 7 and as "7"."""
    return np.unique(ids, return_inverse=True)[1]


def _clip_overruns(rows: EventRows, gpu: Bool, device: Int, stream: Int) -> EventRows:
    """Cut GPU work whose duration is corrupt at the start of the next on its stream, and count it."""
    gpu_rows = np.flatnonzero(gpu)
    start, dur = rows.table.ts_ns, rows.table.dur_ns
    gpu_rows = gpu_rows[np.lexsort((start[gpu_rows], stream[gpu_rows], device[gpu_rows]))]
    before, after = gpu_rows[:-1], gpu_rows[1:]
    same = (device[before] == device[after]) & (stream[before] == stream[after])
    corrupt = same & (start[before] + dur[before] - start[after] > OVERRUN_NS)
    if not corrupt.any():
        return rows
    dur = dur.copy()
    dur[before[corrupt]] = (start[after] - start[before])[corrupt]
    rows.repaired["GPU work overrunning the next on its stream by over 1 ms, cut there"] = int(corrupt.sum())
    return rows._replace(table=rows.table._replace(dur_ns=dur))


def _nest(kind: Int, thread: Int, start: Int, end: Int) -> tuple[Int, Int]:
    rank = np.full(len(EVENT_KINDS), -1)
    for level, name in enumerate(STACK_KINDS):
        rank[EVENT_KINDS.index(name)] = level
    rows = np.flatnonzero(rank[kind] >= 0)
    parent, depth = np.full(len(kind), -1, dtype=np.int64), np.zeros(len(kind), dtype=np.int64)
    inner, depth[rows] = nest(thread[rows], start[rows], end[rows], rank[kind[rows]])
    parent[rows] = lookup(rows, inner, -1)
    return parent, depth


def _calls(table: Encoded, rows: EventRows, kind: Int, parent: Int, depth: Int) -> Calls:
    def named(test: Any) -> Bool:
        of_name = np.array([bool(test(name)) for name in table.names], dtype=bool)
        mask: Bool = of_name[rows.table.name]
        return mask

    return Calls(
        is_launch=kind == EVENT_KINDS.index("launch"),
        is_op=kind == EVENT_KINDS.index("op"),
        is_graph=named(re.compile("GraphLaunch").search),
        transparent=named(PASSED_THROUGH.__contains__),
        start=rows.table.ts_ns,
        parent=parent,
        depth=depth,
        correlation=rows.table.correlation,
        external_id=rows.table.external_id,
    )


def _flows(table: Encoded, dialect: Dialect, pids: Int, tids: Int) -> Flows:
    columns = table.columns
    category_codes = [code for code, name in enumerate(table.categories) if name in dialect.launch_flows]
    arrow = np.isin(columns.category, category_codes)
    phase = {name: code for code, name in enumerate(table.phases)}
    begin = np.flatnonzero(arrow & (columns.phase == phase.get("s", -1)))
    end = np.flatnonzero(arrow & (columns.phase == phase.get("f", -1)))

    def key(row: Int) -> Any:
        return _flow_key(pids[columns.pid[row]], tids[columns.tid[row]], columns.ts_ns[row])

    return Flows(columns.correlation[begin], key(begin), columns.correlation[end], key(end))


def _flow_key(pid: Int, tid: Int, start: Int) -> Any:
    return np.rec.fromarrays((pid, tid, start))


def _link(
    gpu_mask: Bool, calls: Calls, flows: Flows, location: tuple[Int, Int, Int]
) -> tuple[dict[str, Int], Bool]:
    gpu = np.flatnonzero(gpu_mask)
    launch = find_launches(gpu, calls)
    linked = np.zeros(len(gpu_mask), dtype=bool)
    linked[gpu] = is_linked(gpu, launch, calls, flows.start_id)
    bare = np.flatnonzero((launch < 0) & (calls.correlation[gpu] < 0))
    if len(bare) and len(flows.end_id):
        launches = np.flatnonzero(calls.is_launch)
        rows = gpu[bare]
        by_flow = launches_by_flow(
            rows, _flow_key(*(x[rows] for x in location)), _flow_key(*(x[launches] for x in location)), flows
        )
        hit = by_flow >= 0
        launch[bare[hit]] = launches[by_flow[hit]]
        linked[rows] = hit
    op = find_ops(gpu, launch, calls)
    return {"kernel_id": gpu, "launch_id": launch, "op_id": op}, linked


def _ops(table: Encoded, rows: EventRows, kind: Int) -> Table:
    """One row an op; ops without recorded arguments have empty texts."""
    op_events = np.flatnonzero(kind == EVENT_KINDS.index("op"))
    row_of = np.full(len(table.columns.phase), -1, dtype=np.int64)
    row_of[table.ops.event] = np.arange(len(table.ops.event))
    op_row = row_of[rows.source[op_events]]
    # All texts in one list, four a blob (dims, types, strides, values); the last blob stands for none.
    joined = SEPARATOR.join([*table.blobs, SEPARATOR * 3]).decode("utf-8", "replace")
    parts = joined.split(SEPARATOR.decode())
    blob = lookup(table.ops.blob, op_row, len(table.blobs))
    texts = {
        name: Coded.merged(blob, parts[index::4])
        for index, name in enumerate(("shapes", "dtypes", "strides", "values"))
    }

    def number(values: Int) -> Int:
        return lookup(values, op_row, -1)

    return OPS.table(
        texts
        | {
            "event_id": op_events,
            "inferred": Coded.of([""] * len(op_events)),
            "sequence": number(table.ops.sequence),
            "forward_thread": number(table.ops.forward_thread),
        }
    )


def _launches(table: Encoded, rows: EventRows, kind: Int) -> Table:
    """One row a launch call that names its kernel."""
    named = np.array([bool(name) for name in table.kernels], dtype=bool)
    events = np.flatnonzero((kind == EVENT_KINDS.index("launch")) & named[rows.table.kernel])
    kernels = Coded.merged(rows.table.kernel[events], table.kernels)
    return LAUNCHES.table({"event_id": events, "kernel": kernels})


def _forward(op: Int, ops: Table, thread: Int, start: Int, nested: tuple[Int, Int]) -> Int:
    """Forward op of each piece of work: what ops inside a backward node run belongs to that node's."""
    op_rows, (parent, depth) = ops.array("event_id"), nested
    forward = forward_ops(
        op_rows, ops.array("sequence"), ops.array("forward_thread"), thread[op_rows], start[op_rows]
    )
    of_event = np.full(len(parent), -1, dtype=np.int64)
    of_event[op_rows] = forward
    node = nearest(parent, depth, of_event >= 0)
    backward_node = lookup(node, op, -1)
    return lookup(of_event, backward_node, -1)


def _meta(
    splitter: Splitter,
    table: Encoded,
    rows: EventRows,
    dialect: Dialect,
    threads: dict[tuple[int, int], str],
    unread: tuple[str, ...],
) -> TraceMeta:
    keys = splitter.header | splitter.tail
    rank, world_size, notes = ranks_of_header(distributed(keys))
    pace, unreadable = pace_of(splitter.source.path, keys.get("tracelens"), rank)
    host = keys.get("host_name")
    return TraceMeta(
        path=splitter.source.path,
        format=dialect.name,
        rank=rank,
        world_size=world_size,
        host=host if isinstance(host, str) else "",
        devices=device_names(keys),
        epoch_ns=max(integer(keys.get("baseTimeNanoseconds"), LAST_NS), 0),
        read=len(table.columns.phase) + len(table.drops) + table.unused.total(),
        kept=rows.kept,
        dropped=dict(rows.dropped),
        first_drop=rows.first_drop,
        repaired=dict(rows.repaired),
        problems=(*splitter.problems, *notes, *unread, *unreadable),
        losses=reported_losses(keys),
        threads=threads,
        pace=pace,
        software=software_of(keys),
        program=program(keys),
    )

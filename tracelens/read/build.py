"""Decoded columns to the tables of a `Trace`: what every JSON format shares."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import cache
from itertools import compress
from typing import Any, NamedTuple

import numpy as np

from tracelens.arrays import Bool, Int, lookup, ordered, taken, unique
from tracelens.dtypes import element_bytes
from tracelens.errors import ParseError
from tracelens.limits import LARGEST_COUNT
from tracelens.read.header import (
    device_names,
    distributed,
    group_of,
    listed_ranks,
    pace_of,
    program,
    ranks_of_header,
    reported_losses,
    software_of,
)
from tracelens.read.json import (
    FIRST_NS,
    LAST_NS,
    MISSING,
    OUT_OF_RANGE,
    CollectiveRow,
    Columns,
    Encoded,
    Splitter,
    integer,
    plain_text,
    summable,
)
from tracelens.read.noted import group_rows
from tracelens.table import Coded, Table, nearest
from tracelens.trace import (
    COLLECTIVES,
    EVENT_KINDS,
    EVENTS,
    GPU_KINDS,
    GPU_SIGNS,
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
    """How one format names things."""

    name: str  # of the format
    kinds: Mapping[str, str]  # the profiler's category to ours (tables.KINDS), lower case; others are slices
    launch_flows: frozenset[str] = frozenset()  # categories of the arrows from launch calls to GPU work
    # how categories of events on accelerators begin, known or not
    accelerators: re.Pattern[str] = re.compile(r"(?!)")
    no_work: str = "no GPU work"  # what a trace without any is, and what to do


class EventRows(NamedTuple):
    """The events that become rows, and what happened to the others."""

    table: Columns
    source: Int
    category: Int  # of all events, also of those without a row
    dropped: Counter[str]
    first_drop: dict[str, int]
    repaired: Counter[str]
    kept: int


_AGAIN = "record the run again, or pass what export_chrome_trace wrote"
_OPEN, _CLOSE = ("B", "b"), ("E", "e")


Location = tuple[Int, Int, Int]

POINT_TO_POINT = ("send", "recv")
_COALESCED = "nccl:coalesced"
_NCCL = "nccl:"
"""Begins the names of annotations that only GPUs' communication leaves on the host."""
# Other calls, which ask for a GPU's properties or wait for it, the profiler itself makes where there is one.
_GIVES_WORK = re.compile("launch|memcpy|memset|enqueue|append", re.IGNORECASE)


def build(splitter: Splitter, table: Encoded, dialect: Dialect) -> Trace:
    """Assemble the trace.

    Raises:
        ParseError: no intact event, or the work of its devices is of categories that are not known.
    """
    path = splitter.source.path
    rows = _select(table)
    if not len(rows.source):
        lost = ", ".join(f"{count} {reason}" for reason, count in rows.dropped.items())
        why = "; ".join([*splitter.problems, *([f"dropped: {lost}"] if lost else [])])
        raise ParseError(path, f"no intact trace event{f' ({why})' if why else ''}; {_AGAIN}")
    known = [EVENT_KINDS.index(dialect.kinds.get(name.lower(), "slice")) for name in table.categories]
    kind = np.array(known, dtype=np.int8)[rows.table.category]
    unread = unread_device_events(path, table, rows, kind, dialect.kinds, dialect.accelerators)
    pids, tids, threads = _threads(table)
    pid, tid = pids[rows.table.pid], tids[rows.table.tid]
    # Equal ids to equal small numbers: profilers write one thread as 7 and as "7".
    dense_pids, dense_tids = (np.unique(ids, return_inverse=True)[1] for ids in (pids, tids))
    thread = dense_pids[rows.table.pid] * len(tids) + dense_tids[rows.table.tid]
    gpu = _on_gpu(kind)
    device = np.where(gpu, np.where(rows.table.device >= 0, rows.table.device, pid), -1)
    stream = np.where(gpu, np.where(rows.table.stream != -1, rows.table.stream, tid), -1)
    rows = _plausible(rows, gpu, device, stream)
    start, end = rows.table.ts_ns, rows.table.ts_ns + rows.table.dur_ns

    nesting = np.full(len(EVENT_KINDS), -1)
    nesting[[EVENT_KINDS.index(name) for name in STACK_KINDS]] = np.arange(len(STACK_KINDS))
    stacked = np.flatnonzero(nesting[kind] >= 0)
    parent, depth = np.full(len(kind), -1, dtype=np.int64), np.zeros(len(kind), dtype=np.int64)
    around, depth[stacked] = nest(thread[stacked], start[stacked], end[stacked], nesting[kind[stacked]])
    parent[stacked] = lookup(stacked, around, -1)

    calls = Calls(
        is_launch=kind == EVENT_KINDS.index("launch"),
        is_op=kind == EVENT_KINDS.index("op"),
        is_graph=np.array(["GraphLaunch" in name for name in table.names], dtype=bool)[rows.table.name],
        transparent=np.array([name in PASSED_THROUGH for name in table.names], dtype=bool)[rows.table.name],
        start=start,
        parent=parent,
        depth=depth,
        correlation=rows.table.correlation,
        external_id=rows.table.external_id,
    )
    link, linked = _linked(table, dialect, gpu, calls, (pids, tids), (pid, tid, start))
    ops = _ops(table, rows, kind)
    keys = splitter.header | splitter.tail
    records, cpu_only = table.collectives, _is_cpu_only(table, rows, kind, calls)
    if cpu_only:
        from tracelens.read.gloo import host_side  # few traces are

        link, records = host_side(table, rows, kind, (thread, tid, end), calls, distributed(keys))
    link["call_id"] = np.full(len(link["op_id"]), -1, dtype=np.int64)
    # What ops inside a backward node run belongs to that node's forward op.
    op_rows = ops.array("event_id")
    forward = np.full(len(parent), -1, dtype=np.int64)
    forward[op_rows] = forward_ops(
        op_rows, ops.array("sequence"), ops.array("forward_thread"), thread[op_rows], start[op_rows]
    )
    backward_node = lookup(nearest(parent, depth, forward >= 0), link["op_id"], -1)
    link["forward_op_id"] = lookup(forward, backward_node, -1)

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
            "source": Coded(np.zeros(len(start), dtype=np.int32), ("trace",)),
        }
    )
    names_kernel = np.array([bool(name) for name in table.kernels], dtype=bool)[rows.table.kernel]
    naming = np.flatnonzero(calls.is_launch & names_kernel)
    kernels = Coded.merged(rows.table.kernel[naming], table.kernels)
    tables = {
        "events": events,
        "ops": ops,
        "collectives": collectives_table(records, rows.source, link, events, rows.repaired),
        "links": LINKS.table(link),
        "launches": LAUNCHES.table({"event_id": naming, "kernel": kernels}),
    }
    rank, world_size, notes = ranks_of_header(distributed(keys))
    pace, unreadable = pace_of(path, keys.get("tracelens"), rank)
    filled, not_read = group_rows(path, table.names)
    host_name = keys.get("host_name")
    meta = TraceMeta(
        path=path,
        format=dialect.name,
        rank=rank,
        world_size=world_size,
        host=host_name if isinstance(host_name, str) else "",
        devices=device_names(keys),
        epoch_ns=max(integer(keys.get("baseTimeNanoseconds"), LAST_NS), 0),
        read=len(rows.category) + len(table.drops) + table.unused.total(),
        kept=rows.kept,
        dropped=dict(rows.dropped),
        first_drop=rows.first_drop,
        repaired=dict(rows.repaired),
        damage=splitter.damage,
        problems=(*splitter.problems, *notes, *unread, *unreadable, *not_read),
        losses=reported_losses(keys),
        cpu_only=cpu_only,
        no_work="" if cpu_only or gpu.any() else dialect.no_work,
        threads=threads,
        pace=pace,
        software=software_of(keys),
        program=program(keys),
        group_rows=filled,
    )
    return Trace(meta, tables)


def _select(table: Encoded) -> EventRows:
    """Choose the events that become rows; count the rest by reason, and leave the arrows in the table."""
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
    begin, begin_dur_ns, unpaired = pair_begin_end(table, columns)
    _count(dropped, "start time out of range", (complete | instant) & outside)
    _count(dropped, "no start time", (complete | instant) & ~timed & ~outside)
    _count(dropped, "complete event without duration", lacking)
    _count(dropped, "begin or end without its partner", unpaired)
    dropped.update(table.unused)
    row[begin] = True
    dur[begin] = begin_dur_ns
    source = np.flatnonzero(row)
    endless = source[~summable(dur[source])]
    row[endless] = False
    dropped["duration out of range"] += len(endless) + int((~row[begin]).sum())
    source = np.flatnonzero(row)
    negative = dur[source] < 0
    _count(repaired, "negative duration set to 0", negative)
    no_name = np.array([not name for name in table.names], dtype=bool)
    _count(repaired, "no name", no_name[columns.name[source]])
    picked = Columns(*taken(columns, source))._replace(dur_ns=np.maximum(dur[source], 0))
    kept = sum(int(np.count_nonzero(mask)) for mask in (row, used, row[begin]))
    # Of a large trace both would be most of the memory.
    table.columns = Columns(*taken(table.columns, of("s", "f")))
    return EventRows(
        table=picked,
        source=source,
        category=columns.category,
        dropped=+dropped,
        first_drop=first_drop,
        repaired=repaired,
        kept=kept,
    )


def _on_gpu(kind: Int) -> Bool:
    """Which events are of the GPU, by their kinds."""
    mask: Bool = np.array([name in GPU_KINDS for name in EVENT_KINDS]).take(kind)
    return mask


def _is_cpu_only(table: Encoded, rows: EventRows, kind: Int, calls: Calls) -> bool:
    """Whether a trace has ops and no sign of a GPU: the work is that of the host."""
    if not calls.is_op.any() or np.isin(kind, [EVENT_KINDS.index(name) for name in GPU_SIGNS]).any():
        return False
    launched = unique(rows.table.name[kind == EVENT_KINDS.index("launch")])
    if any(_GIVES_WORK.search(table.names[code]) for code in launched):
        return False
    return not any(name.startswith(_NCCL) for name in table.names)


def _count(counter: Counter[str], reason: str, mask: Bool) -> None:
    if count := int(np.count_nonzero(mask)):
        counter[reason] += count


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


def _plausible(rows: EventRows, gpu: Bool, device: Int, stream: Int) -> EventRows:
    """Leave out sizes that no sum could hold, cut corrupt durations, and count both."""
    columns = rows.table
    for name in ("bytes", "blocks"):  # of copies and kernels
        values = getattr(columns, name)
        absurd = gpu & ~summable(np.where(gpu, values, -1))
        absurd |= values < -1
        if absurd.any():
            _count(rows.repaired, OUT_OF_RANGE, absurd)
            columns = columns._replace(**{name: np.where(absurd, -1, values)})
    gpu_rows = np.flatnonzero(gpu)
    start, dur = columns.ts_ns, columns.dur_ns
    gpu_rows = gpu_rows[ordered(device[gpu_rows], stream[gpu_rows], start[gpu_rows])]
    before, after = gpu_rows[:-1], gpu_rows[1:]
    same = (device[before] == device[after]) & (stream[before] == stream[after])
    corrupt = same & (start[before] + dur[before] - start[after] > OVERRUN_NS)
    if corrupt.any():
        dur = dur.copy()
        dur[before[corrupt]] = (start[after] - start[before])[corrupt]
        columns = columns._replace(dur_ns=dur)
        reason = "GPU work overrunning the next on its stream by over 1 ms, cut there"
        rows.repaired[reason] = int(corrupt.sum())
    return rows._replace(table=columns)


def _linked(
    table: Encoded, dialect: Dialect, gpu_mask: Bool, calls: Calls, ids: tuple[Int, Int], location: Location
) -> tuple[dict[str, Int], Bool]:
    """Columns of the links table, without forward ops, and which events an arrow leads to.

    `ids` are process and thread of each code, `location` is process, thread and start of each event.
    """
    columns, (pids, tids) = table.columns, ids
    names_flow = np.array([name in dialect.launch_flows for name in table.categories], dtype=bool)
    is_flow = names_flow.take(columns.category)
    phase = {name: code for code, name in enumerate(table.phases)}
    begin = np.flatnonzero(is_flow & (columns.phase == phase.get("s", -1)))
    end = np.flatnonzero(is_flow & (columns.phase == phase.get("f", -1)))
    gpu = np.flatnonzero(gpu_mask)
    launch = find_launches(gpu, calls)
    linked = np.zeros(len(gpu_mask), dtype=bool)
    linked[gpu] = is_linked(gpu, launch, calls, columns.correlation[begin])
    bare = np.flatnonzero((launch < 0) & (calls.correlation[gpu] < 0))
    if len(bare) and len(end):
        flow_begin, flow_end = (
            np.rec.fromarrays((pids[columns.pid[row]], tids[columns.tid[row]], columns.ts_ns[row]))
            for row in (begin, end)
        )
        flows = Flows(columns.correlation[begin], flow_begin, columns.correlation[end], flow_end)
        launches = np.flatnonzero(calls.is_launch)
        work_key, launch_key = (
            np.rec.fromarrays([values[row] for values in location]) for row in (gpu[bare], launches)
        )
        by_flow = launches_by_flow(gpu[bare], work_key, launch_key, flows)
        hit = by_flow >= 0
        launch[bare[hit]] = launches[by_flow[hit]]
        linked[gpu[bare]] = hit
    return {"kernel_id": gpu, "launch_id": launch, "op_id": find_ops(gpu, launch, calls)}, linked


def _ops(table: Encoded, rows: EventRows, kind: Int) -> Table:
    """One row an op; ops without recorded arguments have empty texts."""
    op_events = np.flatnonzero(kind == EVENT_KINDS.index("op"))
    row_of = np.full(len(rows.category), -1, dtype=np.int64)
    row_of[table.ops.event] = np.arange(len(table.ops.event))
    op_row = row_of[rows.source[op_events]]
    arguments = {"shapes": "dims", "dtypes": "types", "strides": "strides", "values": "values"}
    texts = {}
    for name, argument in arguments.items():
        values = getattr(table, argument)
        if "" not in values:
            values = [*values, ""]
        codes = lookup(getattr(table.ops, argument), op_row, values.index(""))
        texts[name] = Coded.merged(codes, values)
    return OPS.table(
        texts
        | {
            "event_id": op_events,
            "inferred": Coded(np.zeros(len(op_events), dtype=np.int32), ("",)),
            "sequence": lookup(table.ops.sequence, op_row, -1),
            "forward_thread": lookup(table.ops.forward_thread, op_row, -1),
        }
    )


def pair_begin_end(table: Encoded, columns: Columns) -> tuple[Int, Int, Bool]:
    """Pair them in order of time; an end closes the last open begin of its thread (B/E) or id (b/e).

    Returns:
        (rows of the begin events that found their end, ns between the two, mask of those that found none).
    """
    codes = {code: name for code, name in enumerate(table.phases) if name in (*_OPEN, *_CLOSE)}
    alone = np.array([code in codes for code in range(len(table.phases))], dtype=bool).take(columns.phase)
    empty = np.empty(0, dtype=np.int64)
    if not alone.any():
        return empty, empty, alone
    rows = np.flatnonzero(alone & (columns.ts_ns != MISSING))
    rows = rows[np.argsort(columns.ts_ns[rows], kind="stable")]
    waiting: dict[tuple[object, ...], list[int]] = defaultdict(list)
    begins: list[int] = []
    ends: list[int] = []
    for row in rows.tolist():
        phase, pid = codes[columns.phase[row]], table.pids[columns.pid[row]]
        key: tuple[object, ...] = (columns.category[row], table.async_ids.get(row, ""), columns.name[row])
        if phase in ("B", "E"):
            key = (pid, table.tids[columns.tid[row]])
        if phase in _OPEN:
            waiting[key].append(row)
        elif waiting[key]:
            begins.append(waiting[key].pop())
            ends.append(row)
    begin, end = np.array(begins, dtype=np.int64), np.array(ends, dtype=np.int64)
    alone[begin] = False
    alone[end] = False
    return begin, columns.ts_ns[end] - columns.ts_ns[begin], alone


def unread_device_events(
    path: str,
    table: Encoded,
    rows: EventRows,
    kind: Int,
    kinds: Mapping[str, str],
    accelerators: re.Pattern[str],
) -> tuple[str, ...]:
    """What is not read of the devices, for people: one sentence a category.

    `kinds` are the known categories; those of accelerators begin as `accelerators` says.

    Raises:
        ParseError: nothing else in the trace is GPU work.
    """
    known = np.array([name.lower() in kinds for name in table.categories], dtype=bool)
    named = np.array([bool(accelerators.match(name.lower())) for name in table.categories], dtype=bool)
    category = rows.table.category
    # Kineto gives both to what a device did; accelerators' own profilers draw arrows with a category.
    on_stream = (rows.table.device >= 0) & (rows.table.stream >= 0) & ~known[category]
    has_ops = bool((kind == EVENT_KINDS.index("op")).any())
    counts = _counts(rows.category, named & ~known) if named.any() else {}
    counts |= _counts(category[on_stream & ~named[category]], ~known) if has_ops else {}
    if not counts:
        return ()
    unread = tuple(
        f"not read: {count:,} device event{'s' * (count != 1)} of category {table.categories[code]!r}"
        for code, count in counts.items()
    )
    if _on_gpu(kind).any():
        return unread
    raise ParseError(
        path,
        f"{'; '.join(unread)}, and nothing else in the trace is GPU work; export it with Kineto's categories "
        f"({', '.join(name for name, of in kinds.items() if of == 'kernel')}, gpu_memcpy, gpu_memset)",
    )


def _counts(category: Int, mask: Bool) -> dict[int, int]:
    """Number of events of each wanted category."""
    number = np.bincount(category[category >= 0], minlength=len(mask))
    return {code: int(number[code]) for code in np.flatnonzero(mask & (number > 0)).tolist()}


def collectives_table(
    records: list[CollectiveRow], source: Int, link: dict[str, Int], events: Table, repaired: Counter[str]
) -> Table:
    """The collectives table: what the profiler recorded about each, joined to its kernel.

    A CPU record and the kernel that repeats its metadata become one row. Sends and receives that were
    batched share one kernel, launched when the batch ends. `source` is the position in the file of each row
    of the events table; `repaired` counts what had to be corrected.
    """
    start = events.array("ts_ns")
    kernels, ops = (link[name].tolist() if records else [] for name in ("kernel_id", "op_id"))
    recorded = np.array([record.event for record in records], dtype=np.int64)
    row_of = np.searchsorted(source, recorded)
    is_kept = source[np.minimum(row_of, len(source) - 1)] == recorded
    kernel_of_op, op_of_kernel = dict(zip(ops, kernels, strict=True)), dict(zip(kernels, ops, strict=True))
    known = list(compress(zip(row_of.tolist(), records, strict=True), is_kept.tolist()))
    cpu = {row for row, _ in known if row not in op_of_kernel}
    rows = [(row, record) for row, record in known if op_of_kernel.get(row, -1) not in cpu]
    # In the order in which the program asked for them; what was queued before the recording, as it ran.
    launch_of = dict(zip(kernels, link["launch_id"].tolist() if records else [], strict=True))

    def called_at(item: tuple[int, CollectiveRow]) -> tuple[int, int]:
        launch = launch_of.get(item[0], -1)
        return int(start[launch if launch >= 0 else item[0]]), item[0]

    rows.sort(key=called_at)
    seen: dict[bytes, int] = {}
    peers = cache(listed_ranks)
    read = cache(plain_text)  # thousands of records share a few texts, and one of them may be long
    data: dict[str, list[Any]] = {column.name: [] for column in COLLECTIVES.columns}
    for row, record in rows:
        order = seen[record.group] = seen.get(record.group, -1) + 1
        width = element_bytes(read(record.dtype))
        ranks, size, wrong = group_of(read(record.ranks), record.size)
        if wrong:
            repaired[wrong] += 1
        peer = -1
        if record.collective in POINT_TO_POINT:
            members = peers(ranks)  # empty where they are not recorded whole
            if record.peer >= 0:
                peer = record.peer if not members or record.peer in members else -1
            elif 0 <= record.peer_in_group < len(members):
                peer = members[record.peer_in_group]
        values = {
            "event_id": row,
            "kernel_id": row if row in op_of_kernel else kernel_of_op.get(row, -1),
            "collective": record.collective,
            "group": read(record.group),
            "group_description": read(record.description),
            "group_ranks": ranks,
            "group_size": size,
            "dtype": read(record.dtype),
            "in_bytes": _message_bytes(record.in_elements, width),
            "out_bytes": _message_bytes(record.out_elements, width),
            "in_split": read(record.in_split),
            "out_split": read(record.out_split),
            "order": order,
            "peer": peer,
        }
        for name, value in values.items():
            data[name].append(value)
    data["kernel_id"] = _batched(data, link, events)
    numbers = {column.name for column in COLLECTIVES.columns if column.dtype == "int64"}
    columns: dict[str, Any] = {
        name: np.array(values, dtype=np.int64) if name in numbers else values for name, values in data.items()
    }
    for name in ("in_bytes", "out_bytes"):
        absurd = ~summable(columns[name])
        if absurd.any():
            repaired[OUT_OF_RANGE] += int(absurd.sum())
            columns[name] = np.where(absurd, -1, columns[name])
    return COLLECTIVES.table(columns)


def _message_bytes(elements: int, width: int) -> int:
    """Size of a message; -1 where it is not known or cannot be."""
    size = elements * width
    return size if width > 0 <= elements and size <= LARGEST_COUNT else -1


def _batched(data: Mapping[str, list[Any]], link: Mapping[str, Int], events: Table) -> list[int]:
    """The kernel of each record, with those of batched sends and receives filled in.

    torch.distributed closes a batch with a region of its own, in which the kernel is launched; the batch is
    what was recorded on that thread since the region before.
    """
    kernels: list[int] = list(data["kernel_id"])
    names: Coded = events.columns["name"]
    kind = data["collective"]
    loose = [record for record, kernel in enumerate(kernels) if kernel < 0 and kind[record] in POINT_TO_POINT]
    if not loose or _COALESCED not in names.values:
        return kernels
    start, dur, tid = (events.array(name) for name in ("ts_ns", "dur_ns", "tid"))
    named = names.codes == list(names.values).index(_COALESCED)
    region = np.flatnonzero(named & (events.array("stream") < 0))
    launched = np.flatnonzero(link["launch_id"] >= 0)
    call = link["launch_id"][launched]
    loose_of: dict[int, list[int]] = {}
    for record in loose:
        loose_of.setdefault(int(tid[data["event_id"][record]]), []).append(record)
    for thread, records_of_thread in loose_of.items():
        regions = region[tid[region] == thread]
        regions = regions[np.argsort(start[regions], kind="stable")]
        end = start[regions] + dur[regions]
        launches = launched[tid[call] == thread]
        when = start[link["launch_id"][launches]]
        by_time = np.argsort(when, kind="stable")
        times = when[by_time]
        for record in records_of_thread:
            index = int(np.searchsorted(end, start[data["event_id"][record]]))
            if index == len(regions):
                continue
            low, high = np.searchsorted(times, (start[regions[index]], end[index])).tolist()
            if low < high:
                kernels[record] = int(link["kernel_id"][launches[by_time[low:high].min()]])
    return kernels

"""What one rank did between its communication kernels: the part that travels to where ranks are compared."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracelens.analysis.host import (
    CAUSES,
    CODE,
    Gaps,
    find_gaps,
    host_names,
    idle_pieces,
    reads,
    threads,
    waiting_calls,
)
from tracelens.analysis.stragglers.readiness import ready_times
from tracelens.arrays import Bool, Float, Int, lookup
from tracelens.table import codes, sums
from tracelens.trace import (
    WORK_KINDS,
    Scope,
    Trace,
    Work,
    describe,
    gpu_work,
    shares,
    steps_of,
    union,
)

TIMES = (
    "work",
    "comm",
    "late",
    "blocked",
    "garbage",
    "silent",
    "loading",
    "collective",
    "other",
)
"""What the time of a piece is: GPU work that is no communication; communication beside which there is none;
idle while the host was on its way to the next launch, in a blocking call, collecting garbage, silent, loading
data, in the call of a collective; or idle for anything else."""

WORK, COMM, LATE, BLOCKED, GARBAGE, SILENT, LOADING, COLLECTIVE, OTHER = range(len(TIMES))

_KIND = {
    "launch overhead": LATE,
    "queue refill": LATE,
    "CPU ops": LATE,
    "blocking call": BLOCKED,
    "garbage collection": GARBAGE,
    "silent host": SILENT,
    "data loading": LOADING,
    "collective call": COLLECTIVE,
}
_KIND_OF_CAUSE = np.array([_KIND.get(name, OTHER) for name in CAUSES])

# After a call that blocked, the host takes this long at most to launch again. An idle GPU beyond that has
# another reason than the call.
RESTART_NS = 100_000
# A host that does the work itself does not wait where it reads a value, and one read takes no time. Where it
# reads so many in one gap it is in a loop of them, and that is what it does from the first to the last.
_LOOP = 10


class Key(NamedTuple):
    """Work that is the same on every rank: an op with its arguments, or where these are missing a kernel.

    Attributes:
        op: name, "" where there is none.
        arguments: shapes and types as text, "" where none were recorded.
        kernel: name of the kernel and number of its blocks, "" where the arguments say it all.
    """

    op: str
    arguments: str
    kernel: str


class Segments(NamedTuple):
    """The time of one rank, cut at each start and end of its communication kernels.

    Piece i is [edges[i], edges[i + 1]); the first one begins with the recording.

    Attributes:
        rank: of the trace.
        edges: ns, ascending; empty where it does not communicate.
        time: ns of each piece (rows) by TIMES (columns); a row adds up to the piece.
        host: what the host was in, by piece and TIMES: code into `texts`, -1 if unknown.
        longest: ns of the longest gap, whose host that is.
        texts: of `host`.
        piece: of each row of the work table, ascending.
        key: of the same, code into `keys`.
        calls: calls of that key in that piece; one that crosses a border counts for its share.
        ns: of the same, time that is nobody else's.
        keys: all of them.
        key_calls: calls of each key in the whole recording.
        key_ns: their time, whatever ran beside them.
        stream: of each key, the one with most of its time; -1 for none.
        launch: start of the launch call of each communication kernel, -1 if not in the trace.
        beside: whether other work was running when that kernel began.
        held: ns by TIMES of the launching host from the first edge to that launch, whatever the GPU did.
        ready: when that kernel was launched and the computation before it had ended, -1 if unknown.
        beside_end: whether other work was running when that kernel ended.
        step_ns: mean length of its steps.
        steps: number of its steps.
        cpu_only: whether the work is the host's.
    """

    rank: int
    edges: Int
    time: Int
    host: Int
    longest: Int
    texts: list[str]
    piece: Int
    key: Int
    calls: Float
    ns: Int
    keys: list[Key]
    key_calls: Int
    key_ns: Int
    stream: Int
    launch: Int
    beside: Bool
    held: Int
    ready: Int
    beside_end: Bool
    step_ns: float
    steps: int
    cpu_only: bool = False


class _Gap(NamedTuple):
    """Idle time: its piece, kind among TIMES, ns, and what the host was in (code into `texts`)."""

    piece: Int
    kind: Int
    ns: Int
    host: Int
    texts: list[str]


def segments(trace: Trace, *, scope: Scope = "all") -> Segments:
    """What a rank did between its communication kernels.

    Args:
        trace: of the rank.
        scope: which GPU work counts, see trace.Scope.
    """
    work = gpu_work(trace, scope)
    is_comm = work.kind == WORK_KINDS.index("comm")
    comm = work.take(is_comm)
    if not len(comm.start):
        return _silent(trace.meta.rank)
    begin = trace.window.start if trace.window else int(trace.arrays.start.min())
    edges = np.unique(np.concatenate(([begin], comm.start, comm.end)))
    edges = edges if len(edges) > 1 else np.append(edges, edges[-1] + 1)
    time = np.zeros((len(edges) - 1, len(TIMES)), dtype=np.int64)
    blocking = waiting_calls(trace, work)
    waited = ~work.is_kernel & (work.launch >= 0) & blocking[work.launch]
    kind = np.where(is_comm, COMM, np.where(waited, BLOCKED, WORK))
    order = np.where(is_comm, 2, (work.kind != WORK_KINDS.index("computation")).astype(np.int64))
    row, piece, ns = shares(work.start, work.end, order, edges)
    nonempty = ns > 0
    row, piece, ns = row[nonempty], piece[nonempty], ns[nonempty]
    np.add.at(time, (piece, kind[row]), ns)
    gap = _gaps(trace, work, edges)
    np.add.at(time, (gap.piece, gap.kind), gap.ns)
    host, longest = _hosts(gap, time.shape)
    is_work = kind[row] == WORK
    table = _work(trace, work, row[is_work], piece[is_work], ns[is_work])
    launch = work.launch_call[is_comm]
    called = lookup(trace.arrays.start, launch, -1)
    other_work = union(work.start[~is_comm], work.end[~is_comm])
    # A host that works itself asks for nothing ahead of its other work.
    beside, beside_end = (
        (other_work.covered(time_ns - 1, time_ns + 1) == 2) & (not work.cpu_only)
        for time_ns in (comm.start, comm.end)
    )
    held = _held(trace, work, np.flatnonzero(is_comm), int(edges[0]))
    ready = ready_times(trace, work, is_comm)
    values = (
        edges,
        time,
        host,
        longest,
        gap.texts,
        *table,
        called,
        beside,
        held,
        ready,
        beside_end,
        *_steps(trace),
        work.cpu_only,
    )
    return Segments(trace.meta.rank, *values)


def _steps(trace: Trace) -> tuple[float, int]:
    """Mean length and number of the steps."""
    edges = steps_of(trace).only_whole().edges
    count = max(len(edges) - 1, 1)
    return float(edges[-1] - edges[0]) / count, count


def _held(trace: Trace, work: Work, comm: Int, begin: int) -> Int:
    """What the host did before it launched each of these pieces of work, as in Segments.

    A host that runs ahead may sleep or block while its GPU is busy. What it lacks then makes it late where
    the queue runs empty.
    """
    called = lookup(trace.arrays.start, work.launch_call[comm], -1)
    order = np.argsort(called, kind="stable")
    order = order[called[order] > begin]
    held = np.zeros((len(comm), len(TIMES)), dtype=np.int64)
    if not len(order):
        return held
    end = called[order]
    start = np.append(begin, end[:-1])
    between = np.flatnonzero(end > start)
    gaps = Gaps(start[between], end[between], np.full(len(between), -1), comm[order[between]])
    pieces = idle_pieces(trace, work, gaps)
    # A GPU that is busy is what the host waits for: nothing is missing from the trace.
    kind = np.where(pieces.cause == CODE["unrecorded work"], BLOCKED, _KIND_OF_CAUSE[pieces.cause])
    ns = np.zeros((len(order), len(TIMES)), dtype=np.int64)
    np.add.at(ns, (between[pieces.gap], kind), pieces.dur)
    held[order] = ns.cumsum(axis=0)
    return held


def _launching(trace: Trace, work: Work, mask: Bool) -> Int:
    """Rows of the chosen events on threads that launch work."""
    thread = threads(trace)
    rows = np.flatnonzero(mask)
    return rows[np.isin(thread[rows], np.unique(thread[work.launch_call[work.launch_call >= 0]]))]


def _silent(rank: int) -> Segments:
    """The part of a rank that does not communicate."""
    none = np.empty(0, dtype=np.int64)
    table, no = none.reshape(0, len(TIMES)), none.astype(bool)
    calls, keys, texts = np.empty(0), list[Key](), list[str]()
    times, of_keys = (none, table, table, table, texts), (keys, none, none, none)
    return Segments(rank, *times, none, none, calls, none, *of_keys, none, no, table, none, no, 0.0, 0)


def _gaps(trace: Trace, work: Work, edges: Int) -> _Gap:
    """Idle time, each gap split into what was waited for."""
    gaps = find_gaps(work, np.array([edges[0], edges[0]]))
    gaps = gaps.take(gaps.end <= edges[-1])
    pieces = idle_pieces(trace, work, gaps)
    piece = np.searchsorted(edges, gaps.start, side="right") - 1
    kind = _KIND_OF_CAUSE[pieces.cause]
    ns = np.zeros((len(gaps.start), len(TIMES)), dtype=np.int64)
    np.add.at(ns, (pieces.gap, kind), pieces.dur)
    name, op, names = host_names(trace, pieces._replace(host=pieces.inner))
    texts: dict[str, int] = {}
    pair, (name, op) = codes(name, op)
    code = np.array(
        [
            texts.setdefault(_host_text(names[name_code], names[op_code]), len(texts))
            for name_code, op_code in zip(name.tolist(), op.tolist(), strict=True)
        ],
        dtype=np.int64,
    )
    host = np.full(ns.shape, -1, dtype=np.int64)
    order = np.argsort(pieces.dur, kind="stable")
    host[pieces.gap[order], kind[order]] = code[pair[order]] if len(order) else -1
    if work.cpu_only:
        host[:, BLOCKED], read_ns = _reading(trace, work, gaps, texts)
        for idle in (LATE, SILENT):
            moved = np.minimum(read_ns - ns[:, BLOCKED], ns[:, idle])
            ns[:, BLOCKED] += moved
            ns[:, idle] -= moved
    else:
        # A host that waited for the GPU has no more launches ahead: the call makes its next one late.
        restart = np.where(ns[:, BLOCKED] > 0, np.minimum(ns[:, LATE], RESTART_NS), 0)
        ns[:, BLOCKED] += restart
        ns[:, LATE] -= restart
    gap, kinds = np.nonzero(ns)
    return _Gap(piece[gap], kinds, ns[gap, kinds], host[gap, kinds], list(texts))


def _reading(trace: Trace, work: Work, gaps: Gaps, texts: dict[str, int]) -> tuple[Int, Int]:
    """Where a host that works itself reads values in a gap: by what (code into `texts`), and for how long."""
    events = trace.arrays
    rows = _launching(trace, work, reads(trace))
    rows = rows[np.argsort(events.start[rows], kind="stable")]
    none = np.full(len(gaps.start), -1)
    if not len(rows):
        return none, np.zeros_like(none)
    reading = union(events.start[rows], events.end[rows])
    launch_call = lookup(work.launch_call, gaps.after, -1)
    called = lookup(events.start, launch_call, gaps.end)
    end = np.clip(called, gaps.start, gaps.end)
    begins, ends = np.searchsorted(reading.start, gaps.start), np.searchsorted(reading.end, end, side="right")
    most = len(reading.start) - 1
    looped = reading.end[np.clip(ends - 1, 0, most)] - reading.start[np.clip(begins, 0, most)]
    ns = np.where(ends - begins >= _LOOP, looped, reading.covered(gaps.start, end))
    first = rows[np.minimum(np.searchsorted(events.start[rows], gaps.start), len(rows) - 1)]
    code = [texts.setdefault(events.names[name], len(texts)) for name in events.name[first].tolist()]
    return np.where(ns > 0, np.array(code, dtype=np.int64), -1), ns


def _hosts(gap: _Gap, shape: tuple[int, ...]) -> tuple[Int, Int]:
    """Of each piece and kind: what the host was in during the longest gap, and that gap's ns."""
    host, longest = np.full(shape, -1, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    order = np.argsort(gap.ns, kind="stable")  # the last write stays: the longest
    host[gap.piece[order], gap.kind[order]] = gap.host[order]
    longest[gap.piece[order], gap.kind[order]] = gap.ns[order]
    return host, longest


def _host_text(name: str, op: str) -> str:
    return f"{name} in {op}" if op and name and op != name else name or op


def _work(
    trace: Trace, work: Work, row: Int, piece: Int, ns: Int
) -> tuple[Int, Int, Float, Int, list[Key], Int, Int, Int]:
    """The work table: piece, key, calls, ns, keys, their calls, times, streams; of the shares of kernels."""
    key, keys, has_arguments = _keys(trace, work)
    # A call may have several kernels; together they are one.
    of_call = np.zeros(len(trace.arrays.start), dtype=np.int64)
    counted = np.flatnonzero(has_arguments & (work.kind != WORK_KINDS.index("comm")))
    np.add.at(of_call, work.op[counted], work.dur[counted])
    call_ns = np.where(has_arguments, of_call[np.maximum(work.op, 0)], work.dur)
    # In the whole recording, also what never ran without other work beside it.
    all_rows = np.flatnonzero(work.kind != WORK_KINDS.index("comm"))
    used, code_of_row = np.unique(key[all_rows], return_inverse=True)
    call = np.where(has_arguments, work.op, -1 - np.arange(len(key)))[all_rows]
    _, (key_of_call, _) = codes(code_of_row.astype(np.int64), call)
    of_stream, (keys_of_stream, stream) = codes(code_of_row.astype(np.int64), work.stream[all_rows])
    order = np.argsort(sums(of_stream, work.dur[all_rows], len(stream)), kind="stable")
    most = np.full(len(used), -1, dtype=np.int64)
    most[keys_of_stream[order]] = stream[order]  # the last write stays: the longest
    group, (pieces, key) = codes(piece, key[row])
    calls = np.zeros(len(pieces))
    np.add.at(calls, group, ns / np.maximum(call_ns[row], 1))
    return (
        pieces,
        np.searchsorted(used, key),
        calls,
        sums(group, ns, len(pieces)),
        [keys[number] for number in used],
        np.bincount(key_of_call, minlength=len(used)),
        sums(code_of_row.astype(np.int64), work.dur[all_rows], len(used)),
        most,
    )


def _keys(trace: Trace, work: Work) -> tuple[Int, list[Key], Bool]:
    """Key of each piece of GPU work, all keys, and whether the op's arguments are recorded."""
    events, ops = trace.arrays, trace.tables["ops"]
    op_row = np.full(len(events.start), -1, dtype=np.int64)
    op_row[ops.array("event_id")] = np.arange(len(ops))
    row = lookup(op_row, work.op, -1)
    shapes, dtypes = ops.columns["shapes"], ops.columns["dtypes"]
    recorded = [np.where(row >= 0, column.codes[row] if len(ops) else -1, -1) for column in (shapes, dtypes)]
    argument, (shape, dtype) = codes(*recorded)
    texts = [
        describe(shapes.values[shape_code], dtypes.values[dtype_code]) if shape_code >= 0 else ""
        for shape_code, dtype_code in zip(shape.tolist(), dtype.tolist(), strict=True)
    ]
    is_recorded = np.array([bool(text) for text in texts], dtype=bool)[argument]
    op = lookup(events.name, work.op, -1)
    group, (op, argument, kernel, blocks) = codes(
        op,
        np.where(is_recorded, argument, -1),
        np.where(is_recorded, -1, work.name),
        np.where(is_recorded, -1, work.blocks),
    )
    columns = (values.tolist() for values in (op, argument, kernel, blocks))
    keys = [
        Key(
            events.names[op_code] if op_code >= 0 else "",
            texts[argument_code] if argument_code >= 0 else "",
            _kernel(events.names, kernel_code, block_count),
        )
        for op_code, argument_code, kernel_code, block_count in zip(*columns, strict=True)
    ]
    return group, keys, is_recorded


def _kernel(names: list[str], name: int, blocks: int) -> str:
    if name < 0:
        return ""
    return f"{names[name]} x {blocks:,} blocks" if blocks >= 0 else names[name]

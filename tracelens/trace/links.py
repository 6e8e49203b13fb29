"""Who caused what: nesting of host events, GPU work's launch, op and forward op, and the host's own work.

In a CPU-only trace the processor is the device, and ops are what it runs. An op mostly calls other ops, and
time must be counted once. What counts is the op in which the work is done: one without any op inside of it,
bookkeeping aside (views, allocation), or one whose class (kernels.toml) none of the ops inside of it has.
aten::linear calls aten::addmm, which is a GEMM as well, so the work is addmm's; aten::addmm copies its bias
with an aten::copy_, which is no GEMM, so the GEMM is addmm's own and the copy a part of it. Ops that only
call others, such as the nodes of the backward pass and a program's own autograd functions, never count, nor
does one around a more telling class.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tracelens.arrays import Bool, Int, lookup, ordered, unique
from tracelens.native import core
from tracelens.table import depths, nearest
from tracelens.trace.classify import classify_op, host_role, level_of

if TYPE_CHECKING:
    from tracelens.trace.activities import Work
    from tracelens.trace.trace import Trace

GRAPH_CALL = re.compile(r"^(?:cuda|cu|hip)GraphLaunch")

PASSED_THROUGH = ("execute",)
"""Ops that only run other ops: a launch directly inside one belongs to the op around it."""


class Calls(Struct, frozen=True):
    """CPU-side columns that linking needs, one row an event.

    `is_launch`, `is_op`: kinds; `is_graph`: the launch starts a whole graph; `transparent`: op that is
    passed through; `parent`, `depth`: from `nest`.
    """

    is_launch: Bool
    is_op: Bool
    is_graph: Bool
    transparent: Bool
    start: Int
    parent: Int
    depth: Int
    correlation: Int
    external_id: Int


class Flows(Struct, frozen=True):
    """Launch-to-GPU flow events: `start_*` at the launch call, `end_*` at the GPU work.

    `key` says where and when an event lies, so that flows can be matched to events without ids.
    """

    start_id: Int
    start_key: NDArray[np.void]
    end_id: Int
    end_key: NDArray[np.void]


TOLERANCE_NS = 1000
"""A child may overrun its parent by this much: clocks are read in turn, and old traces round to us."""


class Stack(Struct, frozen=True):
    """Events, one row each: whether it is an op, code of its name, parent and depth (see `nest`)."""

    is_op: Bool
    name: Int
    parent: Int
    depth: Int


_ANY_OP = 1
"""The bit that any op has that is no bookkeeping."""


def find_launches(gpu: Int, calls: Calls) -> Int:
    """Launch call of each GPU row by correlation id, -1 where there is none.

    A runtime call and the driver call inside it share an id: the outer one is the launch. Where an id is
    used again, the last call before the GPU work counts.
    """
    launches = np.flatnonzero(calls.is_launch & (calls.correlation > 0))
    launch = np.full(len(gpu), -1, dtype=np.int64)
    if not len(launches) or not len(gpu):
        return launch
    order = launches[ordered(calls.correlation[launches], calls.start[launches])]
    ids = calls.correlation[order]
    correlation = calls.correlation[gpu]
    low = np.searchsorted(ids, correlation, side="left")
    high = np.searchsorted(ids, correlation, side="right")
    has = (high > low) & (correlation > 0)
    pick = low.copy()
    for row in np.flatnonzero(has & (high - low > 1)):
        candidates = calls.start[order[low[row] : high[row]]]
        before = np.searchsorted(candidates, calls.start[gpu[row]], side="right") - 1
        pick[row] += max(int(before), 0)
    launch[has] = order[pick[has]]
    outer = lookup(calls.parent, launch, -1)
    same = lookup(calls.is_launch, outer, False) & (calls.correlation[outer] == correlation)
    return np.where(same, outer, launch)


def launches_by_flow(gpu: Int, gpu_key: NDArray[np.void], launch_key: NDArray[np.void], flows: Flows) -> Int:
    """Launch call of GPU rows that have no correlation id, through the flow arrow drawn to them.

    The keys are thread and time: of these rows, and of every event (only launches need to be right).
    """
    launch = np.full(len(gpu), -1, dtype=np.int64)
    flow_of = dict(zip(flows.end_key.tolist(), flows.end_id.tolist(), strict=True))
    start_key_of = dict(zip(flows.start_id.tolist(), flows.start_key.tolist(), strict=True))
    call_of = {key: row for row, key in enumerate(launch_key.tolist())}
    for row, key in enumerate(gpu_key.tolist()):
        start_key = start_key_of.get(flow_of.get(key, -1))
        launch[row] = call_of.get(start_key, -1)
    return launch


def is_linked(gpu: Int, launch: Int, calls: Calls, flow_ids: Int) -> Bool:
    """Whether the launch call is known and an arrow starts at it; graph launches draw no arrow of their own.

    In a trace without any arrow (profilers can leave them out) the correlation alone decides.
    """
    known = launch >= 0
    if not len(flow_ids):
        return known
    correlation, ids = calls.correlation[gpu], unique(flow_ids)  # np.isin would sort both
    arrow: Bool = ids.take(np.searchsorted(ids, correlation), mode="clip") == correlation
    return known & (arrow | lookup(calls.is_graph, launch, False))


def is_unattributed(trace: Trace) -> bool:
    """Whether a trace launches graphs, and of nothing in them the op is known."""
    return any(map(GRAPH_CALL.match, trace.arrays.names)) and not trace.arrays.copied.any()


def launched_by_graph(trace: Trace, work: Work) -> Bool:
    """Of each piece of GPU work, whether a graph launch started it."""
    return lookup(trace.arrays.named(GRAPH_CALL.match), work.launch, False)


def find_ops(gpu: Int, launch: Int, calls: Calls) -> Int:
    """Innermost op around each launch call; GPU work without a launch falls back on its External id."""
    around = nearest(calls.parent, calls.depth, calls.is_op & ~calls.transparent)
    op = lookup(around, launch, -1)
    orphans = np.flatnonzero((launch < 0) & (calls.external_id[gpu] > 0))
    if len(orphans):
        ops = np.flatnonzero(calls.is_op & (calls.external_id > 0))
        ops = ops[np.argsort(calls.external_id[ops], kind="stable")]
        external_id = calls.external_id[gpu[orphans]]
        index = np.searchsorted(calls.external_id[ops], external_id)
        safe_index = np.minimum(index, max(len(ops) - 1, 0))
        if len(ops):
            hit = (index < len(ops)) & (calls.external_id[ops[safe_index]] == external_id)
            op[orphans[hit]] = ops[safe_index[hit]]
    return op


def forward_ops(op_rows: Int, sequence: Int, forward_thread: Int, thread: Int, start: Int) -> Int:
    """Forward op of each backward op: same autograd sequence number on the forward thread.

    Several nested ops carry the number that the node they are about to create will get; the one that
    starts last is the one that creates it. The profiler's own thread numbers stand for the threads that
    share most sequence numbers with them, each for another one where several share the same.

    Args:
        op_rows: event rows of ops; the other arguments are aligned with it.
        sequence: autograd sequence number, -1 if none.
        forward_thread: 0 or -1 on forward ops, the number of the forward thread on backward ops.
        thread: CPU thread of the op.
        start: ns.

    Returns:
        event row of the forward op, -1 where there is none, aligned with op_rows.
    """
    result = np.full(len(op_rows), -1, dtype=np.int64)
    is_forward = (sequence >= 0) & (forward_thread <= 0)
    backward = np.flatnonzero((sequence >= 0) & (forward_thread > 0))
    forward = np.flatnonzero(is_forward)
    if not len(backward) or not len(forward):
        return result
    threads = unique(thread[forward])
    taken = np.zeros(len(threads), dtype=bool)
    for number in unique(forward_thread[backward]):
        rows = backward[forward_thread[backward] == number]
        candidates = forward
        if len(threads) > 1:
            shared = [np.isin(sequence[rows], sequence[forward[thread[forward] == t]]).sum() for t in threads]
            best = int(np.lexsort((taken, -np.array(shared)))[0])
            taken[best] = True
            candidates = forward[thread[forward] == threads[best]]
        candidates = candidates[ordered(sequence[candidates], start[candidates])]
        index = np.searchsorted(sequence[candidates], sequence[rows], side="right") - 1
        forward_op = lookup(candidates, index, -1)
        hit = lookup(sequence, forward_op, -1) == sequence[rows]
        hit &= lookup(start, forward_op, 0) <= start[rows]
        result[rows[hit]] = op_rows[forward_op[hit]]
    return result


def nest(thread: Int, start: Int, end: Int, rank: Int) -> tuple[Int, Int]:
    """Parent and depth of each event by containment within its thread.

    The parent is the last event to start before this one that lasts until its end. An event that overlaps
    another without lying inside it (a profiler step that begins in one frame and ends in the next) is no
    child of it.

    Args:
        thread: any integer that tells threads apart.
        start: ns.
        end: ns.
        rank: for events of identical extent, the lower rank is the outer one; then the earlier row.

    Returns:
        (parent, depth): row of the parent or -1; number of ancestors.
    """
    count = len(start)
    if native := core():
        parent, depth = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
        native.nest(*map(np.ascontiguousarray, (thread, start, end, rank)), TOLERANCE_NS, parent, depth)
        return parent, depth
    order = ordered(thread, start, -end, rank)
    thread, start, end = thread[order], start[order], end[order]
    # Every row asks the one before it, and on "no" whom that one has come to ask meanwhile: none of those
    # in between can contain it either. So a row of n siblings is passed in log2(n) rounds.
    above = np.arange(-1, count - 1)
    asking = np.arange(count)
    while len(asking):
        asking = asking[above[asking] >= 0]
        candidate = above[asking]
        same = thread[candidate] == thread[asking]
        # An event without extent at its parent's very end still belongs to it (us-resolution traces).
        begun, finish = start[asking], end[asking]
        open_ = (end[candidate] > begun) | ((end[candidate] == begun) & (begun == finish))
        refused = ~(same & open_ & (finish <= end[candidate] + TOLERANCE_NS))
        asking, candidate = asking[refused], candidate[refused]
        above[asking] = np.where(same[refused], above[candidate], -1)
    parent = np.full(count, -1, dtype=np.int64)
    parent[order] = lookup(order, above, -1)
    return parent, depths(parent)


def enclosing_op(trace: Trace) -> Int:
    """For each event, itself if it is an op, else the nearest op around it, else -1; with `trace.once`."""
    events = trace.arrays
    return nearest(events.parent, events.depth, events.where("op"))


def host_work(stack: Stack, names: list[str], within: Bool, called: Bool) -> Int:
    """Rows of the ops that are work of the host, ascending.

    Args:
        stack: the host's events.
        names: by code.
        within: events whose ops are a part of them (communication on its own thread).
        called: ops whose own work is another event (the communication that they started).
    """
    # By code of a name: the bit of its class, 0 for none; the bits of the classes inside of it that are its
    # work; whether it does no work itself, bookkeeping or composite; whether it is bookkeeping.
    count = len(names)
    bit_of, explained = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    is_idle, is_silent = np.zeros(count, dtype=bool), np.zeros(count, dtype=bool)
    level: dict[tuple[str, bool], int] = {}
    for code in unique(stack.name[stack.is_op]).tolist():
        role = host_role(names[code])
        is_idle[code], is_silent[code] = role in ("bookkeeping", "composite"), role == "bookkeeping"
        if name := classify_op(names[code]):
            kind = (name, role == "copying")
            level.setdefault(kind, level_of(name))
            bit_of[code] = 2 << list(level).index(kind)
    for index, kind in enumerate(level):
        explained[bit_of == 2 << index] = sum(
            2 << lower for lower, inner in enumerate(level) if inner == kind or level[inner] < level[kind]
        )
    bit = bit_of[stack.name]
    own_bits = np.where(stack.is_op & ~is_silent[stack.name], _ANY_OP | bit, 0)
    inside = np.zeros_like(own_bits)  # of each event, the bits of all that is inside of it
    order = np.argsort(stack.depth, kind="stable")
    deepest = int(stack.depth.max(initial=0))
    borders = np.searchsorted(stack.depth[order], np.arange(deepest + 2))
    for depth in range(deepest, 0, -1):
        rows = order[borders[depth] : borders[depth + 1]]
        np.bitwise_or.at(inside, stack.parent[rows], own_bits[rows] | inside[rows])
    own_work = (bit != 0) & ((inside & explained[stack.name]) == 0)
    does = stack.is_op & ~is_idle[stack.name] & ~called & ((inside == 0) | own_work)
    around = nearest(stack.parent, stack.depth, does | within)
    return np.flatnonzero(does & (lookup(around, stack.parent, -1) < 0))

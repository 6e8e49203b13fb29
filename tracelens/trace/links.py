"""From GPU work back to the call that launched it, the op around that call, and the forward op behind it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tracelens.arrays import Bool, Int, lookup
from tracelens.table import nearest

PASSED_THROUGH = ("execute",)
"""Ops that only run other ops: a launch directly inside one belongs to the op around it."""


class Calls(NamedTuple):
    """CPU-side columns that linking needs, one row an event.

    `is_launch`, `is_op`: kinds; `is_graph`: the launch starts a whole graph; `transparent`: op that is
    passed through; `parent`, `depth`: from callstack.nest.
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


class Flows(NamedTuple):
    """Launch-to-GPU flow events: `start_*` at the launch call, `end_*` at the GPU work.

    `key` says where and when an event lies, so that flows can be matched to events without ids.
    """

    start_id: Int
    start_key: NDArray[np.void]
    end_id: Int
    end_key: NDArray[np.void]


def find_launches(gpu: Int, calls: Calls) -> Int:
    """Launch call of each GPU row by correlation id, -1 where there is none.

    A runtime call and the driver call inside it share an id: the outer one is the launch. Where an id is
    used again, the last call before the GPU work counts.
    """
    launches = np.flatnonzero(calls.is_launch & (calls.correlation > 0))
    launch = np.full(len(gpu), -1, dtype=np.int64)
    if not len(launches) or not len(gpu):
        return launch
    order = launches[np.lexsort((calls.start[launches], calls.correlation[launches]))]
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

    Args:
        gpu: rows to look up.
        gpu_key: thread and time of those rows.
        launch_key: thread and time of every event (only launches need to be right).
        flows: the arrows.
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
    arrow = np.isin(calls.correlation[gpu], flow_ids)
    return known & (arrow | lookup(calls.is_graph, launch, False))


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
    threads = np.unique(thread[forward])
    taken = np.zeros(len(threads), dtype=bool)
    for number in np.unique(forward_thread[backward]):
        rows = backward[forward_thread[backward] == number]
        candidates = forward
        if len(threads) > 1:
            shared = [np.isin(sequence[rows], sequence[forward[thread[forward] == t]]).sum() for t in threads]
            best = int(np.lexsort((taken, -np.array(shared)))[0])
            taken[best] = True
            candidates = forward[thread[forward] == threads[best]]
        candidates = candidates[np.lexsort((start[candidates], sequence[candidates]))]
        index = np.searchsorted(sequence[candidates], sequence[rows], side="right") - 1
        forward_op = lookup(candidates, index, -1)
        hit = lookup(sequence, forward_op, -1) == sequence[rows]
        hit &= lookup(start, forward_op, 0) <= start[rows]
        result[rows[hit]] = op_rows[forward_op[hit]]
    return result

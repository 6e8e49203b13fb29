"""The host: calls that wait for the GPU, and the time it takes to launch."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from tracelens.analysis.host import GARBAGE, blocking_calls, named, threads
from tracelens.arrays import Bool, Int, lookup
from tracelens.devices import Device
from tracelens.trace import Trace, enclosing_op, matching, rows_by_code, wildcards
from tracelens.what_if.graph import Covered, Edge, Edit, Graph, Node, full_queue
from tracelens.what_if.scenario import NotApplicable, ScenarioContext, number, scenario


@scenario("identity")
def identity(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """Nothing changes: the replay reproduces the measured step."""
    return "nothing changes"


class CallNames(NamedTuple):
    """Names of calls that may wait for the GPU, and of the ops around them."""

    event: Int  # row of each call, ascending
    path: Int  # index into `paths` of each
    paths: list[tuple[str, ...]]  # names from the call to the outermost op


def call_names(trace: Trace, device: Device | None) -> CallNames:
    """The names around each call of a rank that may wait."""
    events, around = trace.arrays, trace.once(enclosing_op)
    rows = np.flatnonzero(blocking_calls(trace, trace.work) | trace.once(full_queue))
    columns, op = [events.name[rows]], around[rows]
    while (op >= 0).any():
        columns.append(lookup(events.name, op, -1))
        op = lookup(around, lookup(events.parent, op, -1), -1)
    paths, path = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    names = [tuple(events.names[code] for code in codes if code >= 0) for codes in paths.tolist()]
    return CallNames(rows, path.ravel(), names)


@scenario("no_blocking", argument="=CALL_OR_OP", reads=(call_names,))
def no_blocking(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """No host call waits for the GPU, or none whose name or enclosing op matches the argument.

    Assumes:
        The host gets the values that it read at no cost. GPU work and launches stay the same: no padding or
        masks in place of unknown sizes.
    """
    graph, reason = context.gpu_graph(), "no call waits for the GPU"
    calls = np.ones(len(graph), dtype=bool)
    if argument:
        calls = _matches(context, wildcards(argument))
        reason = f"no blocking call matches {argument!r}, by its name or an enclosing op"
    count = _unblock(graph, edit, calls, reason)
    return (
        f"{count:,} calls return at once; the host gets the values it read there at no cost; GPU work and "
        "launches stay the same (no padding or masks in place of unknown sizes)"
    )


@scenario("launch_free")
def launch_free(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """The host takes no time: what the GPUs could do if never launch-bound.

    Assumes:
        Calls that wait for the GPU still wait; launch latencies stay the same.
    """
    graph = context.gpu_graph()
    host_time = np.isin(graph.edge, (Edge.HOST, Edge.HANDOVER, Edge.ORDER))
    edit.lag[host_time] = 0
    edit.delay[graph.dst[host_time]] = 0
    return "the host takes no time except in blocking calls; launch latencies stay the same"


@scenario("host", argument="=FACTOR", usual=())
def host(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """Host time between calls is multiplied by FACTOR: a faster CPU, less Python, no profiler.

    Assumes:
        Launch latencies stay the same.
    """
    graph, factor = context.gpu_graph(), number(argument, f"host={argument}")
    host_time = np.isin(graph.edge, (Edge.HOST, Edge.HANDOVER))
    edit.set_lag(host_time, edit.lag[host_time] * factor)
    return f"host time between calls x {factor:g}; launch latencies stay the same"


def garbage_collections(trace: Trace, device: Device | None) -> tuple[Int, Int, Int]:
    """(thread, start, end) of each garbage collection of a rank, ns by its own clock."""
    events = trace.arrays
    rows = np.flatnonzero(named(events, GARBAGE))
    # Most traces have none, and numbering threads takes longer than finding that out.
    thread = threads(trace)[rows] if len(rows) else rows
    return thread, events.start[rows], events.end[rows]


@scenario("no_garbage_collection", reads=(garbage_collections,))
def no_garbage_collection(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """Python's garbage collector does not run within the steps.

    Assumes:
        Collections happen between steps, at no cost to them.
    """
    graph = context.graph
    saved = np.zeros(len(graph.edge), dtype=np.int64)
    host_time = np.flatnonzero((graph.edge == Edge.HOST) & (graph.kind[graph.dst] != Node.WAITED))
    for rank, rows in rows_by_code(graph.rank[graph.dst[host_time]]).items():
        collecting = Covered(*context.read(garbage_collections)[rank])
        edges = host_time[rows]
        end_ns = graph.start[graph.dst[edges]] - graph.shift[rank]
        caller = graph.ranks[rank].thread[graph.slot[graph.dst[edges]]]
        saved[edges] = collecting.covered(caller, end_ns - graph.lag[edges], end_ns)
    if not saved.any():
        raise NotApplicable("no garbage collection recorded between host calls")
    # As a share, so that the order of several scenarios that change a lag does not matter.
    edit.lag = np.rint(edit.lag * (1 - saved / np.maximum(graph.lag, 1))).astype(np.int64)
    pauses = int((saved > 0).sum())
    return f"removes {pauses:,} garbage-collection pauses, {saved.sum() / 1e6:,.3f} ms over all ranks"


def _unblock(graph: Graph, edit: Edit, calls: Bool, reason: str) -> int:
    """Drop the edges by which these calls wait for the GPU; returns the number of waiting calls.

    Raises:
        NotApplicable: there are none; for the given reason.
    """
    waiting = (graph.edge == Edge.SYNC) & (graph.kind[graph.dst] == Node.WAITED) & calls[graph.dst]
    if not waiting.any():
        raise NotApplicable(reason)
    edit.kept &= ~waiting
    return len(np.unique(graph.dst[waiting]))


def _matches(context: ScenarioContext, pattern: re.Pattern[str]) -> Bool:
    """Ends of waiting calls whose name, or that of an op around them, matches."""
    graph = context.graph
    result = np.zeros(len(graph), dtype=bool)
    for rank, calls in enumerate(context.read(call_names)):
        matches = np.array([matching(path, pattern).any() for path in calls.paths], dtype=bool)
        nodes = graph.nodes(rank, Node.WAITED)
        result[nodes] = np.isin(graph.event[nodes], calls.event[matches[calls.path]])
    return result

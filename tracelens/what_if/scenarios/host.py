"""The host: calls that wait for the GPU, and the time it takes to launch."""

from __future__ import annotations

import re

import numpy as np

from tracelens.analysis.host import GARBAGE, named, threads
from tracelens.analysis.moe import blocking
from tracelens.arrays import Bool, lookup
from tracelens.trace import enclosing_op, matching, rows_by_code, wildcards
from tracelens.what_if.graph import Covered, Edge, Edit, Graph, Node
from tracelens.what_if.scenario import NotApplicable, ScenarioContext, number, scenario


@scenario("identity")
def identity(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """Nothing changes: the replay reproduces the measured step."""
    return "nothing changes"


@scenario("no_blocking", argument="=CALL_OR_OP")
def no_blocking(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """No host call waits for the GPU, or none whose name or enclosing op matches the argument."""
    graph, reason = context.gpu_graph(), "no call waits for the GPU"
    calls = np.ones(len(graph), dtype=bool)
    if argument:
        calls = _matches(graph, wildcards(argument))
        reason = f"no blocking call matches {argument!r}, by its name or an enclosing op"
    count = _unblock(graph, edit, calls, reason)
    return (
        f"{count:,} calls return at once; the host gets the values it read there at no cost; GPU work and "
        "launches stay the same (no padding or masks in place of unknown sizes)"
    )


@scenario("sync_free")
def sync_free(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """MoE layers keep their sizes on the GPU: no call in them waits."""
    graph = context.gpu_graph()
    in_layer = np.zeros(len(graph), dtype=bool)
    for rank, trace in enumerate(graph.run.traces):
        calls = trace.once(blocking)
        nodes = graph.nodes(rank, Node.WAITED)
        in_layer[nodes] = np.isin(graph.event[nodes], calls.event[calls.layer_pass >= 0])
    count = _unblock(graph, edit, in_layer, "no call in an MoE layer waits for the GPU")
    return (
        f"{count:,} calls in MoE layers return at once; GPU work and launches stay the same, though "
        "sync-free layers pad buffers to the worst case and launch more"
    )


@scenario("launch_free")
def launch_free(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """The host takes no time: what the GPUs could do if never launch-bound."""
    graph = context.gpu_graph()
    host_time = np.isin(graph.edge, (Edge.HOST, Edge.HANDOVER, Edge.ORDER))
    edit.lag[host_time] = 0
    edit.delay[graph.dst[host_time]] = 0
    return "the host takes no time except in blocking calls; launch latencies stay the same"


@scenario("host", argument="=FACTOR", usual=())
def host(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """Host time between calls is multiplied by FACTOR: a faster CPU, less Python, no profiler."""
    graph, factor = context.gpu_graph(), number(argument, f"host={argument}")
    host_time = np.isin(graph.edge, (Edge.HOST, Edge.HANDOVER))
    edit.set_lag(host_time, edit.lag[host_time] * factor)
    return f"host time between calls x {factor:g}; launch latencies stay the same"


@scenario("no_garbage_collection")
def no_garbage_collection(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """Python's garbage collector does not run within the steps."""
    graph = context.graph
    saved = np.zeros(len(graph.edge), dtype=np.int64)
    host_time = np.flatnonzero((graph.edge == Edge.HOST) & (graph.kind[graph.dst] != Node.WAITED))
    for rank, rows in rows_by_code(graph.rank[graph.dst[host_time]]).items():
        events = graph.run.traces[rank].arrays
        thread, collects = threads(events), np.flatnonzero(named(events, GARBAGE))
        collecting = Covered(thread[collects], events.start[collects], events.end[collects])
        edges = host_time[rows]
        end_ns = graph.start[graph.dst[edges]] - graph.shift[rank]
        caller = thread[graph.event[graph.dst[edges]]]
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


def _matches(graph: Graph, pattern: re.Pattern[str]) -> Bool:
    """Nodes of calls whose name, or that of an enclosing op, matches."""
    result = np.zeros(len(graph), dtype=bool)
    for rank, trace in enumerate(graph.run.traces):
        events, around = trace.arrays, trace.once(enclosing_op)
        matches = matching(events.names, pattern)[events.name]
        nodes = graph.nodes(rank, *(kind for kind in Node if kind != Node.MEET))
        result[nodes] = matches[graph.event[nodes]]
        op = around[graph.event[nodes]]
        while (op >= 0).any():
            result[nodes] |= lookup(matches, op, False)
            op = lookup(around, lookup(events.parent, op, -1), -1)
    return result

"""The host: calls that wait for the GPU, and the time it takes to launch."""

from __future__ import annotations

import re

import numpy as np

from tracelens.analysis.host import GARBAGE, named, threads
from tracelens.analysis.moe import blocking
from tracelens.arrays import Bool, lookup
from tracelens.trace import enclosing_op, matching, rows_by_code, wildcards
from tracelens.what_if.graph import HANDOVER, HOST, ORDER, SYNC, WAITED, Covered, Edit, Graph, whole_ns
from tracelens.what_if.scenario import NotApplicable, ScenarioContext, number, scenario

_HOST = "the host does all the work of this run"


@scenario("identity")
def identity(scene: ScenarioContext, edit: Edit, argument: str) -> str:
    """Nothing is otherwise: the replay gives back what was measured."""
    return "nothing changes"


@scenario("no_blocking", argument="=CALL_OR_OP")
def no_blocking(scene: ScenarioContext, edit: Edit, argument: str) -> str:
    """No call of the host waits for the GPU; or none whose name, or the op around it, fits the argument."""
    graph = _on_gpu(scene)
    waiting = _waiting(graph)
    if argument:
        waiting &= _named(graph, wildcards(argument))[graph.dst]
        if not waiting.any():
            raise NotApplicable(f"no call that waits for the GPU, and no op around one, fits {argument!r}")
    elif not waiting.any():
        raise NotApplicable("no call waits for the GPU")
    edit.kept &= ~waiting
    calls = len(np.unique(graph.dst[waiting]))
    return (
        f"{calls:,} calls return at once; what the host read there it knows otherwise, at no cost, and the "
        "GPU work and the launches stay as they are (no padding, no masks for sizes that are not known)"
    )


@scenario("sync_free")
def sync_free(scene: ScenarioContext, edit: Edit, argument: str) -> str:
    """MoE layers whose sizes stay on the GPU: no call in them waits."""
    graph = _on_gpu(scene)
    inside = np.zeros(len(graph), dtype=bool)
    for at, trace in enumerate(graph.run.traces):
        found = trace.once(blocking)
        rows = np.zeros(len(trace.arrays.start), dtype=bool)
        rows[found.event[found.layer_pass >= 0]] = True
        mine = graph.of_rank[at]
        mine = mine[graph.kind[mine] == WAITED]
        inside[mine] = rows[graph.event[mine]]
    waiting = _waiting(graph) & inside[graph.dst]
    if not waiting.any():
        raise NotApplicable("no call in an MoE layer waits for the GPU")
    edit.kept &= ~waiting
    calls = len(np.unique(graph.dst[waiting]))
    return (
        f"{calls:,} calls in MoE layers return at once; GPU work and launches stay as they are, though "
        "layers without sizes on the host pad buffers to the worst case and launch more"
    )


@scenario("launch_free")
def launch_free(scene: ScenarioContext, edit: Edit, argument: str) -> str:
    """The host takes no time: what the GPUs could do if nobody kept them waiting."""
    graph = _on_gpu(scene)
    own = np.isin(graph.edge, (HOST, HANDOVER, ORDER))
    edit.lag[own] = 0
    edit.delay[graph.dst[own]] = 0
    return "no time passes on the host but in calls that wait; starting a kernel takes as long as it did"


@scenario("host", argument="=FACTOR", usual=())
def host(scene: ScenarioContext, edit: Edit, argument: str) -> str:
    """The host takes FACTOR times as long between its calls: a faster processor, less Python, no profiler."""
    graph, times = _on_gpu(scene), number(argument, f"host={argument}")
    own = np.isin(graph.edge, (HOST, HANDOVER))
    edit.lag[own] = whole_ns(edit.lag[own] * times, edit.lag[own])
    return f"all the host's own time times {times:g}; starting a kernel takes as long as it did"


@scenario("no_garbage_collection")
def no_garbage_collection(scene: ScenarioContext, edit: Edit, argument: str) -> str:
    """Python collects no garbage within the steps."""
    graph = scene.recorded.graph
    saved = np.zeros(len(graph.edge), dtype=np.int64)
    own_time = np.flatnonzero((graph.edge == HOST) & (graph.kind[graph.dst] != WAITED))
    of_rank = rows_by_code(graph.rank[graph.dst[own_time]])
    for at, trace in enumerate(graph.run.traces):
        events, thread = trace.arrays, threads(trace.arrays)
        collects = np.flatnonzero(named(events, GARBAGE))
        if not len(collects) or at not in of_rank:
            continue
        collecting = Covered(thread[collects], events.start[collects], events.end[collects])
        here = own_time[of_rank[at]]
        high = graph.start[graph.dst[here]] - graph.shift[at]
        caller = thread[graph.event[graph.dst[here]]]
        saved[here] = collecting.covered(caller, high - graph.lag[here], high)
    if not saved.any():
        raise NotApplicable("no garbage collection is recorded between the host's calls")
    # As a share, so that it does not matter which of several scenarios changes a lag first.
    edit.lag = np.rint(edit.lag * (1 - saved / np.maximum(graph.lag, 1))).astype(np.int64)
    pauses = int((saved > 0).sum())
    return f"{pauses:,} pauses of the host, {saved.sum() / 1e6:,.3f} ms on all ranks, are gone"


def _on_gpu(scene: ScenarioContext) -> Graph:
    graph = scene.recorded.graph
    if all(trace.meta.cpu_only for trace in graph.run.traces):
        raise NotApplicable(f"{_HOST}: nothing is launched, and nobody waits for a GPU")
    return graph


def _waiting(graph: Graph) -> Bool:
    """Edges by which a call waits for the GPU."""
    found: Bool = (graph.edge == SYNC) & (graph.kind[graph.dst] == WAITED)
    return found


def _named(graph: Graph, pattern: re.Pattern[str]) -> Bool:
    """Nodes of calls whose name, or that of an op around them, fits."""
    found = np.zeros(len(graph), dtype=bool)
    for at, trace in enumerate(graph.run.traces):
        events, around = trace.arrays, trace.once(enclosing_op)
        fits = matching(events.names, pattern)[events.name]
        mine = graph.of_rank[at]
        mine = mine[graph.event[mine] >= 0]
        row = graph.event[mine]
        found[mine] = fits[row]
        row = around[row]
        while (row >= 0).any():
            found[mine] |= lookup(fits, row, False)
            row = lookup(around, lookup(events.parent, row, -1), -1)
    return found

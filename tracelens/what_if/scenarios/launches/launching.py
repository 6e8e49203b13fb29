"""What launching costs the host: quicker calls, or one launch for the whole step."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from tracelens.arrays import Bool, Int, lookup
from tracelens.devices import Device
from tracelens.trace import Trace
from tracelens.units import duration
from tracelens.what_if.graph import Edge, Edit, Graph, Node
from tracelens.what_if.scenario import NotApplicable, ScenarioContext, number, scenario
from tracelens.what_if.scenarios.changes import cut

GRAPH_GAP_NS = 600
"""From the end of a kernel of a graph to the start of the next: in recorded graphs 620 ns on an H200 (mean of
310 gaps) and 510 ns on an MI300X (543)."""

_GRAPH = re.compile("GraphLaunch")


class LaunchCalls(NamedTuple):
    """The calls of one rank that launch GPU work.

    Attributes:
        event: row of each, ascending.
        dur: of the call, ns.
        name: code into `names`.
        names: of the calls.
    """

    event: Int
    dur: Int
    name: Int
    names: list[str]


def launch_calls(trace: Trace, device: Device | None) -> LaunchCalls:
    """The calls of one rank that launch GPU work."""
    events, work = trace.arrays, trace.work
    event = np.unique(work.launch[work.launch >= 0])
    codes, name = np.unique(events.name[event], return_inverse=True)
    names = [events.names[code] for code in codes.tolist()]
    return LaunchCalls(event, (events.end - events.start)[event], name.ravel(), names)


@scenario("launch_cost", argument="=FACTOR", reads=(launch_calls,))
def launch_cost(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """Launch calls take FACTOR times as long; without FACTOR, as usual on the fastest rank at most.

    Assumes:
        The way from a call to the start of its kernel, and host time between calls, stay the same.
    """
    graph, by_rank = context.gpu_graph(), context.read(launch_calls)
    factor = number(argument, f"launch_cost={argument}") if argument else 0.0
    usual = {} if factor else _quickest(by_rank)
    saved = np.zeros(len(graph.edge))
    for rank, calls in enumerate(by_rank):
        if not len(calls.event):
            continue
        target = calls.dur * factor
        if not factor:
            least = np.array([usual[name] for name in calls.names], dtype=float)
            target = np.minimum(calls.dur, least[calls.name])
        own = np.flatnonzero((graph.edge == Edge.HOST) & (graph.rank[graph.src] == rank))
        own = own[(graph.kind[graph.src[own]] == Node.POINT) & (graph.kind[graph.dst[own]] != Node.WAITED)]
        event = graph.event[graph.src[own]]
        index = np.minimum(np.searchsorted(calls.event, event), len(calls.event) - 1)
        launches = calls.event[index] == event
        saved[own[launches]] = (calls.dur - target)[index[launches]]
    saved = np.minimum(saved, graph.lag)
    if not saved.any():
        raise NotApplicable("no launch call takes longer than usual, or none is in the trace")
    edit.set_lag(saved != 0, (edit.lag * (1 - saved / np.maximum(graph.lag, 1)))[saved != 0])
    what = (
        f"take {factor:g}x as long"
        if factor
        else "take no longer than their name's median on the fastest rank"
    )
    return (
        f"launch calls {what}: {duration(abs(saved.sum()))} of host time over all ranks; from a call to the "
        "start of its kernel, and what the host does between calls, stay the same"
    )


def _quickest(by_rank: list[LaunchCalls]) -> dict[str, float]:
    """The lowest of the ranks' medians for each name of a call, ns."""
    usual: dict[str, float] = {}
    for calls in by_rank:
        for code, name in enumerate(calls.names):
            usual[name] = min(usual.get(name, np.inf), float(np.median(calls.dur[calls.name == code])))
    return usual


def has_queued_work(trace: Trace, device: Device | None) -> bool:
    """Whether work of one rank was ever launched before the work ahead of it on its stream began.

    Only there the trace shows the gap between two kernels that are both ready.
    """
    work = trace.work
    rows = np.lexsort((work.start, work.lane))
    ahead, behind = rows[:-1], rows[1:]
    queued = (work.lane[ahead] == work.lane[behind]) & (work.launch[behind] >= 0)
    return bool((queued & (trace.arrays.start[work.launch[behind]] < work.start[ahead])).any())


@scenario("step_graph", reads=(launch_calls, has_queued_work))
def step_graph(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """The step's GPU work is launched as one graph; calls that wait for the GPU split it.

    Assumes:
        One launch remains at the start of each step and one after each call that waits for the GPU. Shapes
        must not change between steps. Where the host is always late, the trace shows no gap between kernels
        that are ready: the usual one of graphs is assumed.
    """
    graph = context.gpu_graph()
    launches = np.zeros(len(graph), dtype=bool)
    for rank, calls in enumerate(context.read(launch_calls)):
        eager = calls.event[
            ~np.array([bool(_GRAPH.search(name)) for name in calls.names], dtype=bool)[calls.name]
        ]
        points = graph.nodes(rank, Node.POINT)
        launches[points] = np.isin(graph.event[points], eager)
    captured = launches & ~_openings(graph, edit, launches)
    if not captured.any():
        raise NotApplicable("no two consecutive launches that a graph could hold")
    host_time = np.isin(graph.edge, (Edge.HOST, Edge.HANDOVER, Edge.ORDER)) & captured[graph.dst]
    cut(edit.lag, host_time)
    edit.delay[captured] = 0
    work = np.zeros(len(graph), dtype=bool)
    of_graph = graph.edge == Edge.LAUNCH
    work[graph.dst[of_graph & captured[graph.src]]] = True
    behind = (graph.edge == Edge.STREAM) & work[graph.dst]
    edit.lag[behind] = np.minimum(edit.lag[behind], GRAPH_GAP_NS)
    never_queued = np.flatnonzero(~np.array(context.read(has_queued_work), dtype=bool))
    edit.lag[behind & np.isin(graph.rank[graph.dst], never_queued)] = GRAPH_GAP_NS
    pieces = int(launches.sum() - captured.sum())
    return (
        f"{int(captured.sum()):,} of {int(launches.sum()):,} launches disappear with the host time before "
        f"them; {pieces:,} remain: one at the start of each step and one after each call that waits for "
        f"the GPU; queued kernels follow each other within {GRAPH_GAP_NS / 1000:g} us; shapes must not "
        "change between steps"
    )


@scenario("no_graphs", argument="=US", usual=(), reads=(launch_calls,))
def no_graphs(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """Each kernel of a graph is launched by a call of its own, US microseconds of host time apart.

    Assumes:
        Kernels, their order and their streams stay the same. The time on the way to a launch, Python and ops
        included, is the same for all: a run without graphs shows it, a replay does not.
    """
    apart_ns = 1000 * number(argument, f"no_graphs={argument}")
    graph = context.gpu_graph()
    dur = np.full(len(graph), -1, dtype=np.int64)  # of graph launches
    for rank, calls in enumerate(context.read(launch_calls)):
        is_graph = np.array([bool(_GRAPH.search(name)) for name in calls.names], dtype=bool)[calls.name]
        points = graph.nodes(rank, Node.POINT)
        row = np.searchsorted(calls.event[is_graph], graph.event[points])
        row[~np.isin(graph.event[points], calls.event[is_graph])] = -1
        dur[points] = lookup(calls.dur[is_graph], row, -1)
    launched = np.flatnonzero((graph.edge == Edge.LAUNCH) & (dur[graph.src] >= 0))
    if not len(launched):
        raise NotApplicable("no graph launch in the trace")
    launched = launched[np.lexsort((graph.start[graph.dst[launched]], graph.src[launched]))]
    source, first, count = np.unique(graph.src[launched], return_index=True, return_counts=True)
    position = np.arange(len(launched)) - np.repeat(first, count)
    edit.set_lag(launched, edit.lag[launched] + position * apart_ns)
    kernels = np.zeros(len(graph), dtype=np.int64)
    kernels[source] = count
    after = np.flatnonzero((graph.edge == Edge.HOST) & (kernels[graph.src] > 0))
    call = graph.src[after]
    edit.set_lag(after, np.maximum(edit.lag[after] - dur[call], 0) + kernels[call] * apart_ns)
    return (
        f"{len(launched):,} launches take the place of {len(source):,} graph launches, "
        f"{duration(apart_ns)} of host time each; kernels, their order and streams stay the same"
    )


def _openings(graph: Graph, edit: Edit, launches: Bool) -> Bool:
    """The launches that begin a graph: those behind a step mark or a wait."""
    before = np.full(len(graph), -1, dtype=np.int64)
    previous = np.isin(graph.edge, (Edge.HOST, Edge.HANDOVER, Edge.ORDER))
    before[graph.dst[previous]] = graph.src[previous]
    waits = np.zeros(len(graph), dtype=bool)
    waits[graph.dst[(graph.edge == Edge.SYNC) & edit.kept]] = True
    follows = lookup(launches, before, False)
    # A call that no longer waits for anything splits nothing.
    free = (graph.kind == Node.WAITED) & ~waits
    passed = lookup(free, before, False)
    follows |= passed & lookup(launches, lookup(before, lookup(before, before, -1), -1), False)
    return launches & ~follows

"""The host: its launches, its waits for the GPU, and what keeps it from both.

Calls that do not wait, in general or in the stages of sync-free MoE; quicker launches, or one for the whole
step; and time in which the GPU is idle because of what the host does meanwhile.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from tracelens.analysis.fusable import StepWork
from tracelens.analysis.host import AVOIDABLE, CODE, GARBAGE, blocking_calls, named, threads
from tracelens.analysis.moe import EXPERTS, PERMUTATION, ROUTER, STAGES, blocking
from tracelens.arrays import Bool, Int, lookup, unique
from tracelens.devices import Device
from tracelens.errors import TracelensError
from tracelens.trace import Trace, enclosing_op, matching, rows_by_code, wildcards
from tracelens.units import duration
from tracelens.what_if.graph import Covered, Edge, Edit, Node, RunGraph, full_queue
from tracelens.what_if.scenario import NotApplicable, ScenarioContext, number, scenario
from tracelens.what_if.scenarios.changes import cut, marked_calls, unblock
from tracelens.what_if.thresholds import GRAPH_GAP_NS


class CallNames(NamedTuple):
    """Names of calls that may wait for the GPU, and of the ops around them."""

    event: Int  # row of each call, ascending
    path: Int  # index into `paths` of each
    paths: list[tuple[str, ...]]  # names from the call to the outermost op


_GRAPH = re.compile("GraphLaunch")


class LaunchCalls(NamedTuple):
    """The calls of one rank that launch GPU work."""

    event: Int  # row of each, ascending
    dur: Int  # of the call, ns
    name: Int  # code into `names`
    names: list[str]  # of the calls


class HostIdle(NamedTuple):
    """When the GPU of a rank was idle because of what its host did, ns by the rank's own clock."""

    cause: Int  # code into the causes of idle time
    once: Bool  # whether its like is in no other step, see analyzer `idle`
    launch: Int  # event row of the call that launched the next work, -1 if the host does the work
    start: Int  # ns
    end: Int  # ns


_FREE = {"1": (ROUTER, PERMUTATION), "2": (ROUTER, PERMUTATION, EXPERTS), "3": tuple(range(len(STAGES)))}
"""The parts of a layer that do not wait, by stage; the rest of 2 waits for the sizes of messages only."""


class LayerWaits(NamedTuple):
    """Calls in MoE layers that wait for the GPU."""

    event: Int  # row of each call
    stage: Int  # code into STAGES


@scenario("identity")
def identity(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """Nothing changes: the replay reproduces the measured step."""
    return "nothing changes"


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
    calls = np.ones(len(graph), dtype=bool)  # ends of waiting calls that return at once
    if argument:
        reason = f"no blocking call matches {argument!r}, by its name or an enclosing op"
        pattern, named = wildcards(argument), []
        for names in context.read(call_names):
            matches = np.array([matching(path, pattern).any() for path in names.paths], dtype=bool)
            named.append(names.event[matches[names.path]])
        calls = marked_calls(graph, named, Node.WAITED)
    waiting = (graph.edge == Edge.SYNC) & (graph.kind[graph.dst] == Node.WAITED) & calls[graph.dst]
    if not waiting.any():
        raise NotApplicable(reason)
    edit.kept &= ~waiting
    return (
        f"{len(unique(graph.dst[waiting])):,} calls return at once; the host gets the values it read "
        "there at no cost; GPU work and launches stay the same (no padding or masks in place of unknown "
        "sizes)"
    )


@scenario("launch_free")
def launch_free(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """The host takes no time: what the GPUs could do if never launch-bound.

    Assumes:
        Calls that wait for the GPU still wait; launch latencies stay the same. Queued kernels follow each
        other as they would in a graph.
    """
    graph = context.gpu_graph()
    host_time = np.isin(graph.edge, (Edge.HOST, Edge.HANDOVER, Edge.ORDER))
    edit.lag[host_time] = 0
    edit.delay[graph.dst[host_time]] = 0
    queued = graph.is_edge(Edge.STREAM)
    edit.lag[queued] = np.minimum(edit.lag[queued], GRAPH_GAP_NS)
    return (
        "the host takes no time except in blocking calls; launch latencies stay the same; queued kernels "
        f"follow each other within {GRAPH_GAP_NS / 1000:g} µs, as in a graph"
    )


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
        caller = graph.ranks[rank].lane[graph.slot[graph.dst[edges]]]
        saved[edges] = collecting.covered(caller, end_ns - graph.lag[edges], end_ns)
    if not saved.any():
        raise NotApplicable("no garbage collection recorded between host calls")
    _shorten(graph, edit, saved)
    pauses = int((saved > 0).sum())
    return f"removes {pauses:,} garbage-collection pauses, {saved.sum() / 1e6:,.3f} ms over all ranks"


def launch_calls(trace: Trace, device: Device | None) -> LaunchCalls:
    """The calls of one rank that launch GPU work."""
    events, work = trace.arrays, trace.work
    event = unique(work.launch[work.launch >= 0])
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
    # The lowest of the ranks' medians for each name of a call, ns.
    usual: dict[str, float] = {}
    for calls in [] if factor else by_rank:
        for code, name in enumerate(calls.names):
            usual[name] = min(usual.get(name, np.inf), float(np.median(calls.dur[calls.name == code])))
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
    by_rank = context.read(launch_calls)
    eager = [calls.event[~matching(calls.names, _GRAPH)[calls.name]] for calls in by_rank]
    launches = marked_calls(graph, eager, Node.POINT)
    # A graph holds the launches behind others; those behind a step mark or a wait begin one.
    before = np.full(len(graph), -1, dtype=np.int64)
    previous = np.isin(graph.edge, (Edge.HOST, Edge.HANDOVER, Edge.ORDER))
    before[graph.dst[previous]] = graph.src[previous]
    waits = np.zeros(len(graph), dtype=bool)
    waits[graph.dst[(graph.edge == Edge.SYNC) & edit.kept]] = True
    follows = lookup(launches, before, False)
    # A call that no longer waits for anything splits nothing.
    passed = lookup((graph.kind == Node.WAITED) & ~waits, before, False)
    follows |= passed & lookup(launches, lookup(before, lookup(before, before, -1), -1), False)
    captured = launches & follows
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
        f"the GPU; queued kernels follow each other within {GRAPH_GAP_NS / 1000:g} µs; shapes must not "
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
        is_graph = matching(calls.names, _GRAPH)[calls.name]
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


def host_idle(trace: Trace, device: Device | None) -> HostIdle:
    """The idle time of a rank that has a cause on its host."""
    step = StepWork(trace, device)
    if not len(step.work.event):
        none = np.empty(0, dtype=np.int64)
        return HostIdle(none, none.astype(bool), none, none, none)
    rows = np.flatnonzero(np.isin(step.idle.cause, [CODE[name] for name in AVOIDABLE]))
    pieces = step.idle.take(rows)
    launches, calls = step.work.launch_call, trace.work.launch_call
    calls = calls[calls >= 0]
    # Nothing is launched behind the last step; its end belongs to the thread of the last launch.
    last = int(calls[np.argmax(trace.arrays.start[calls])]) if len(calls) else -1
    after = step.gaps.after[pieces.gap]
    launch = np.where((after >= 0) | step.work.cpu_only, lookup(launches, after, -1), last)
    return HostIdle(pieces.cause, step.recurrence.once[rows], launch, pieces.start, pieces.end)


@scenario(
    "no_idle", argument="=CAUSE", usual=("silent_host", "cpu_ops", "collective_call"), reads=(host_idle,)
)
def no_idle(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """The GPU is never idle because of CAUSE: silent_host, python_code, cpu_ops, collective_call, ….

    Assumes:
        The host does this at another time; host time during GPU work stays, and so does what happened in one
        step only (scenario no_once).
    """
    causes = {name.replace(" ", "_").lower(): name for name in AVOIDABLE}
    if argument.lower() not in causes:
        raise TracelensError(f"scenario no_idle={argument}: no such cause (known: {', '.join(causes)})")
    return _without(context, edit, causes[argument.lower()])


@scenario("no_once", reads=(host_idle,))
def no_once(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """The GPU is never idle because of what its host did in one step only, such as loading kernels.

    Assumes:
        Steps that are not recorded are like the others; host time during GPU work stays.
    """
    return _without(context, edit, "")


@scenario("data_loading_overlapped", reads=(host_idle,))
def data_loading_overlapped(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """The next batch is ready when the step needs it.

    Assumes:
        The host does this at another time; host time during GPU work stays, and so does what happened in one
        step only.
    """
    return _without(context, edit, "data loading")


def _without(context: ScenarioContext, edit: Edit, cause: str) -> str:
    """Shorten the host's time by the GPU's idle time of a cause that recurs, or all that happened once."""
    graph = context.graph
    # A number for the stretch of a thread that each node is in; it ends where another thread resumes.
    thread = np.arange(len(graph))
    host_time = graph.edge == Edge.HOST
    thread[graph.dst[host_time]] = graph.src[host_time]
    while (further := thread[thread] != thread).any():
        thread[further] = thread[thread[further]]
    saved = np.zeros(len(graph.edge), dtype=np.int64)
    own_time = np.isin(graph.edge, (Edge.HOST, Edge.HANDOVER)) & (graph.lag > 0)
    for rank, idle in enumerate(context.read(host_idle)):
        chosen = (idle.cause == CODE[cause]) & ~idle.once if cause else idle.once
        edges = np.flatnonzero(own_time & (graph.rank[graph.dst] == rank))
        lane = thread[graph.dst[edges]]
        if graph.ranks[rank].cpu_only:  # no thread of it works in these pauses
            rows, lane = np.flatnonzero(chosen), np.zeros(len(edges), dtype=np.int64)
            of_rows = np.zeros(len(rows), dtype=np.int64)
        else:
            points = graph.nodes(rank, Node.POINT)
            event, first = np.unique(graph.event[points], return_index=True)
            rows = np.flatnonzero(chosen & np.isin(idle.launch, event))
            of_rows = thread[points[first[np.searchsorted(event, idle.launch[rows])]]]
        if not len(rows):
            continue
        pieces = Covered(of_rows, idle.start[rows], idle.end[rows])
        end_ns = graph.start[graph.dst[edges]] - graph.shift[rank]
        saved[edges] = pieces.covered(lane, end_ns - graph.lag[edges], end_ns)
    if not saved.any():
        why = cause or "something that happened once"
        raise NotApplicable(f"the GPU is never idle between two host calls because of: {why}")
    _shorten(graph, edit, saved)
    return (
        f"the host does this at another time: {duration(int(saved.sum()))} in {int((saved > 0).sum()):,} "
        "pauses with an idle GPU disappear, over all ranks; host time during GPU work stays"
    )


def _shorten(graph: RunGraph, edit: Edit, saved: Int) -> None:
    """Lags are shorter by their measured share, so that the order of several scenarios does not matter."""
    edit.lag = np.rint(edit.lag * (1 - saved / np.maximum(graph.lag, 1))).astype(np.int64)


def layer_waits(trace: Trace, device: Device | None) -> LayerWaits:
    """The calls of a rank that wait for the GPU in MoE layers."""
    calls = trace.once(blocking)
    inside = calls.layer_pass >= 0
    return LayerWaits(calls.event[inside], calls.stage[inside])


@scenario("sync_free", argument="=1, 2 or 3", usual=("", "1", "2"), reads=(layer_waits,))
def sync_free(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """MoE layers do not wait for the GPU: 1 in router and permutation, 2 in experts too, 3 anywhere.

    Assumes:
        GPU work and launches stay the same, though sync-free layers pad buffers to the worst case and launch
        more.
    """
    stages = _FREE.get(argument or "3")
    if stages is None:
        raise TracelensError(f"scenario sync_free={argument}: the stages are 1, 2 and 3")
    graph, everywhere = context.gpu_graph(), stages == _FREE["3"]
    by_rank = context.read(layer_waits)
    freed = [waits.event[everywhere | np.isin(waits.stage, stages)] for waits in by_rank]
    count = unblock(graph, edit, marked_calls(graph, freed, Node.WAITED))
    if not count:
        where = "an MoE layer" if everywhere else " or ".join(STAGES[stage] for stage in stages)
        raise NotApplicable(f"no call in {where} waits for the GPU")
    return (
        f"{count:,} calls in MoE layers return at once; GPU work and launches stay the same, though "
        "sync-free layers pad buffers to the worst case and launch more"
    )

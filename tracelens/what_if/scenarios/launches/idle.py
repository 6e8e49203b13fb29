"""Idle time of the GPU by what the host did meanwhile: the host no longer does it in the step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracelens.analysis.fusable import StepWork
from tracelens.analysis.host import CODE, HOST_CAUSES
from tracelens.arrays import Int, lookup
from tracelens.devices import Device
from tracelens.errors import TracelensError
from tracelens.trace import Trace
from tracelens.units import duration
from tracelens.what_if.graph import Covered, Edge, Edit, Graph, Node
from tracelens.what_if.scenario import NotApplicable, ScenarioContext, scenario

AVOIDABLE = tuple(
    name
    for name in HOST_CAUSES
    if name not in ("launch overhead", "blocking call", "queue refill", "profiler")
)


class HostIdle(NamedTuple):
    """When the GPU of a rank was idle because of what its host did, ns by the rank's own clock.

    Attributes:
        cause: code into the causes of idle time.
        launch: event row of the call that launched the next work.
        start, end: ns.
    """

    cause: Int
    launch: Int
    start: Int
    end: Int


def host_idle(trace: Trace, device: Device | None) -> HostIdle:
    """The idle time of a rank that has a cause on its host."""
    step = StepWork(trace, device)
    if not len(step.work.event) or step.work.cpu_only:
        return HostIdle(*(np.empty(0, dtype=np.int64) for _ in HostIdle._fields))
    pieces = step.idle_by(*AVOIDABLE)
    launches, calls = step.work.launch_call, trace.work.launch_call
    calls = calls[calls >= 0]
    # Nothing is launched behind the last step; its end belongs to the thread of the last launch.
    last = int(calls[np.argmax(trace.arrays.start[calls])]) if len(calls) else -1
    after = step.gaps.after[pieces.gap]
    launch = np.where(after >= 0, lookup(launches, after, -1), last)
    return HostIdle(pieces.cause, launch, pieces.start, pieces.end)


@scenario(
    "no_idle", argument="=CAUSE", usual=("silent_host", "cpu_ops", "collective_call"), reads=(host_idle,)
)
def no_idle(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """The GPU is never idle because of CAUSE: silent_host, cpu_ops, collective_call, data_loading.

    Assumes:
        The host does this at another time; host time during GPU work stays.
    """
    causes = {name.replace(" ", "_").lower(): name for name in AVOIDABLE}
    if argument.lower() not in causes:
        raise TracelensError(f"scenario no_idle={argument}: no such cause (known: {', '.join(causes)})")
    return _without(context, edit, causes[argument.lower()])


@scenario("data_loading_overlapped", reads=(host_idle,))
def data_loading_overlapped(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """The next batch is ready when the step needs it.

    Assumes:
        The host does this at another time; host time during GPU work stays.
    """
    return _without(context, edit, "data loading")


def _without(context: ScenarioContext, edit: Edit, cause: str) -> str:
    """Shorten the host's time by the GPU's idle time of one cause."""
    graph, thread = context.gpu_graph(), _threads(context.graph)
    saved = np.zeros(len(graph.edge), dtype=np.int64)
    own_time = np.isin(graph.edge, (Edge.HOST, Edge.HANDOVER)) & (graph.lag > 0)
    for rank, idle in enumerate(context.read(host_idle)):
        points = graph.nodes(rank, Node.POINT)
        event, first = np.unique(graph.event[points], return_index=True)
        rows = np.flatnonzero((idle.cause == CODE[cause]) & np.isin(idle.launch, event))
        if not len(rows):
            continue
        launch = points[first[np.searchsorted(event, idle.launch[rows])]]
        pieces = Covered(thread[launch], idle.start[rows], idle.end[rows])
        edges = np.flatnonzero(own_time & (graph.rank[graph.dst] == rank))
        end_ns = graph.start[graph.dst[edges]] - graph.shift[rank]
        saved[edges] = pieces.covered(thread[graph.dst[edges]], end_ns - graph.lag[edges], end_ns)
    if not saved.any():
        raise NotApplicable(f"the GPU is never idle between two host calls because of: {cause}")
    # As a share, so that the order of several scenarios that change a lag does not matter.
    edit.lag = np.rint(edit.lag * (1 - saved / np.maximum(graph.lag, 1))).astype(np.int64)
    return (
        f"the host does this at another time: {duration(int(saved.sum()))} in {int((saved > 0).sum()):,} "
        "pauses with an idle GPU disappear, over all ranks; host time during GPU work stays"
    )


def _threads(graph: Graph) -> Int:
    """A number for the stretch of a thread that each node is in; it ends where another thread resumes."""
    before = np.arange(len(graph))
    host_time = graph.edge == Edge.HOST
    before[graph.dst[host_time]] = graph.src[host_time]
    while (further := before[before] != before).any():
        before[further] = before[before[further]]
    return before

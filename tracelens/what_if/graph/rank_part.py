"""`RankPart`: what the graph of a run needs of one rank, made where its trace is."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

import tracelens.devices
from tracelens.analysis.serving import rank_steps as serving_steps
from tracelens.arrays import Int, lookup
from tracelens.errors import TracelensError
from tracelens.table import Coded
from tracelens.trace import WORK_KINDS, Trace, enclosing_op, mean_step_ns
from tracelens.what_if.graph.blocking import Waits, waits
from tracelens.what_if.graph.device import device
from tracelens.what_if.graph.graph import Draft, Rank
from tracelens.what_if.graph.host import Host, host
from tracelens.what_if.graph.streams import order
from tracelens.what_if.graph.windows import RankSteps, steps_of_rank


class RankPart(NamedTuple):
    """The nodes and edges of one rank; it can be pickled, and holds no trace.

    Times are ns by the rank's own clock. Nodes have numbers of their own: first those on the host, then one
    for the begin of each activity in the trace's `work`, then one for the end of each. Only where all ranks
    are known is clear which activities have two nodes.

    Attributes:
        rank: names, and what else the graph knows of it.
        kind, event, work, start, dur: of each node on the host, see Graph.
        begin, finish: of each activity, the numbers of its nodes; those of the host where it runs there.
        work_event: row of each activity in the trace's events.
        work_start, work_end: of each activity.
        edges: (src, dst, lag, kind).
        waits: blocking calls, whose cost is the median of all ranks.
        steps: of the rank.
        unseen: pauses of threads that were compared with few others, see Handovers.
        threads: that launch work.
    """

    rank: Rank
    kind: Int
    event: Int
    work: Int
    start: Int
    dur: Int
    begin: Int
    finish: Int
    work_event: Int
    work_start: Int
    work_end: Int
    edges: list[Int]
    waits: Waits
    steps: RankSteps
    unseen: int
    threads: int


def rank_part(trace: Trace, recorded_on: tracelens.devices.Device | None) -> RankPart:
    """The part of one rank.

    Args:
        trace: of the rank, not narrowed to a step.
        recorded_on: its device, None if unknown.

    Raises:
        TracelensError: no GPU work.
    """
    work = trace.work
    if not len(work.event):
        raise TracelensError(f"{trace.meta.path}: no GPU work to replay")
    draft = Draft()
    own_host = host(trace, draft)
    gpu = device(trace, own_host, draft)
    order(trace, gpu, own_host, draft)
    kind, _, event, work_row, _, _, start, dur = draft.node_columns()
    return RankPart(
        _rank(trace, own_host, event, work_row, recorded_on),
        kind,
        event,
        work_row,
        start,
        dur,
        gpu.begin,
        gpu.finish,
        work.event,
        work.start,
        work.end,
        draft.edge_columns(),
        waits(trace, gpu, own_host),
        steps_of_rank(trace, own_host, gpu),
        own_host.unseen,
        len(own_host.nodes),
    )


def _rank(
    trace: Trace, own_host: Host, event: Int, work_row: Int, recorded_on: tracelens.devices.Device | None
) -> Rank:
    """Names of the nodes on the host, then of the activities."""
    meta, events, work = trace.meta, trace.arrays, trace.work
    around = trace.once(enclosing_op)[event]
    label = np.where((work_row < 0) & (around >= 0), around, event)
    category = lookup(work.category, work_row, len(work.categories))
    on_gpu = np.full(len(work.event), -1, dtype=np.int64)
    name, label = (events.name[np.concatenate((rows, work.event))] for rows in (event, label))
    return Rank(
        meta.rank,
        meta.path,
        meta.world_size,
        meta.cpu_only,
        bool(trace.once(serving_steps).steps),
        mean_step_ns(meta.pace) if meta.pace else -1.0,
        recorded_on,
        work.kind == WORK_KINDS.index("comm"),
        Coded.used(name, events.names),
        Coded.used(label, events.names),
        Coded.used(np.concatenate((category, work.category)), [*work.categories, ""]),
        np.concatenate((own_host.thread[event], on_gpu)),
    )

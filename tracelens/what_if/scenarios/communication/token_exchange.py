"""The exchange of tokens in MoE layers: without redundant copies, or under another micro-batch's work."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracelens.analysis.moe import COMBINE, DISPATCH, STAGES, blocking, deduplicated_share, regions
from tracelens.arrays import Bool, Int
from tracelens.devices import Device
from tracelens.errors import TracelensError
from tracelens.trace import WORK_KINDS, Trace, rows_by_code
from tracelens.units import duration
from tracelens.what_if.graph import Edit, Node
from tracelens.what_if.scenario import NotApplicable, ScenarioContext, scenario
from tracelens.what_if.scenarios.changes import marked, meetings_of, unblock


class Exchange(NamedTuple):
    """The exchange of tokens of one rank.

    Attributes:
        rows: positions in its work of the communication of dispatch and combine.
        waits: event rows of calls in the dispatch that wait for the GPU.
        share: of the copies of tokens that are left if each rank gets a token once; 1 if unknown.
        microbatches: per step.
        communication: which of its work is communication.
    """

    rows: Int
    waits: Int
    share: float
    microbatches: int
    communication: Bool


def exchange(trace: Trace, device: Device | None) -> Exchange:
    """The exchange of tokens of a rank."""
    layers, calls = trace.once(regions), trace.once(blocking)
    communication = trace.work.kind == WORK_KINDS.index("comm")
    rows = np.flatnonzero(communication & np.isin(layers.stage, (DISPATCH, COMBINE)))
    waits = calls.event[(calls.layer_pass >= 0) & (calls.stage == DISPATCH)]
    microbatches = max((layer_pass.microbatch for layer_pass in layers.passes), default=-1) + 1
    share = deduplicated_share(trace) if len(rows) else 1.0
    return Exchange(rows, waits, share, microbatches, communication)


@scenario("dispatch", argument="=dedup or deepep", usual=("dedup", "deepep"), reads=(exchange,))
def dispatch(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """Each token is sent once per rank, not once per expert; deepep: the host does not wait for it either.

    Assumes:
        The experts of a token are chosen at random; the mean number of ranks per token follows from top-k.
        Copies for the experts of a rank are made on arrival, at the same cost.
    """
    if argument not in ("dedup", "deepep"):
        raise TracelensError(f"scenario dispatch={argument}: write dispatch=dedup or dispatch=deepep")
    graph, by_rank = context.gpu_graph(), context.read(exchange)
    meetings = np.flatnonzero(_exchanges(context))
    share = max(part.share for part in by_rank)
    waits = np.zeros(len(graph), dtype=bool)
    for rank, part in enumerate(by_rank):
        nodes = graph.nodes(rank, Node.WAITED)
        waits[nodes] = (argument == "deepep") & np.isin(graph.event[nodes], part.waits)
    count = unblock(graph, edit, waits)
    if share >= 1 and not count:
        raise NotApplicable("experts, ranks or top-k unknown, or no rank has two of a token's experts")
    edit.set_dur(meetings, edit.dur[meetings] * share)
    free = f"; {count:,} calls in the {STAGES[DISPATCH]} return at once" if argument == "deepep" else ""
    return (
        f"{len(meetings):,} dispatches and combines take {share:.0%} of their time, latency included: the "
        f"mean number of ranks that hold a token's experts, chosen at random, by top-k{free}; the copies "
        "for each expert are made on arrival, at the same cost"
    )


@scenario("overlap_1f1b", reads=(exchange,))
def overlap_1f1b(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """All-to-alls of one micro-batch overlap the computation of another (1F1B overlap).

    Assumes:
        Dispatch and combine hide behind computation as far as there is any, except for one micro-batch. The
        computation does not slow down; launches and waiting for late ranks stay.
    """
    graph, by_rank = context.gpu_graph(), context.read(exchange)
    is_exchange = _exchanges(context)
    microbatches = min(part.microbatches for part in by_rank)
    if microbatches < 2:
        raise NotApplicable("one micro-batch per step: there is no other to overlap with")
    step = context.recorded.windows[0].step_of
    computes = np.zeros(len(graph), dtype=bool)
    for rank, part in enumerate(by_rank):
        nodes = graph.nodes(rank, Node.WORK)
        computes[nodes] = ~part.communication[graph.work[nodes]]
    paired = (microbatches - 1) / microbatches
    transfer_ns, hidden_ns = 0.0, 0.0
    counted = np.flatnonzero(is_exchange | computes)
    for rows in rows_by_code(step[counted]).values():
        nodes = counted[rows]
        meetings, work = nodes[is_exchange[nodes]], nodes[computes[nodes]]
        step_ns = float(edit.dur[meetings].sum())
        rank_ns = np.bincount(graph.rank[work], edit.dur[work], len(by_rank))
        overlap_ns = paired * min(step_ns, float(rank_ns.min()))
        edit.set_dur(meetings, edit.dur[meetings] * (1 - overlap_ns / max(step_ns, 1)))
        transfer_ns, hidden_ns = transfer_ns + step_ns, hidden_ns + overlap_ns
    return (
        f"{duration(hidden_ns)} of {duration(transfer_ns)} of dispatch and combine hide behind "
        f"computation: all but those of one of {microbatches} micro-batches, as far as there is "
        "computation; the computation is not slowed down; its launches and waiting for late ranks stay"
    )


def _exchanges(context: ScenarioContext) -> Bool:
    """Which nodes are meetings of a dispatch or combine.

    Raises:
        NotApplicable: there are none that several ranks recorded.
    """
    graph = context.graph
    exchanges = meetings_of(graph, marked(graph, [part.rows for part in context.read(exchange)]))
    if not exchanges.any():
        raise NotApplicable("no dispatch or combine of an MoE layer recorded on several ranks")
    return exchanges

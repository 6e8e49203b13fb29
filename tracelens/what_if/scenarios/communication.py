"""Collectives that are faster or overlapped, and ranks that wait for each other in them.

The all-to-all of expert parallelism, at another bandwidth or hidden; the exchange of tokens in MoE layers,
without redundant copies or under another micro-batch's work; collectives of dense layers, by levels across
hosts or beside their GEMM; parameters that sharded data parallelism gathers; and late ranks, which hold up
the others.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracelens.analysis.comm import SEND_RECV, MatchedCollective, Regathers, spans_of
from tracelens.analysis.comm import regathers as regathers_of
from tracelens.analysis.fusable import StepWork, exposed_pairs, pairs, speed_of_light
from tracelens.analysis.moe import COMBINE, DISPATCH, STAGES, blocking, deduplicated_share, regions
from tracelens.arrays import Bool, Float, Int, unique
from tracelens.devices import Device, bus_factor
from tracelens.errors import TracelensError
from tracelens.table import codes
from tracelens.trace import WORK_KINDS, Trace, rows_by_code
from tracelens.units import amount, duration
from tracelens.what_if.graph import Edge, Edit, Node
from tracelens.what_if.scenario import NotApplicable, ScenarioContext, number, scenario
from tracelens.what_if.scenarios.changes import (
    ALL_TO_ALLS,
    drop_work,
    marked,
    marked_calls,
    meetings_of,
    of_calls,
    scale_pace,
    unblock,
)


class TokenExchange(NamedTuple):
    """The exchange of tokens of one rank."""

    rows: Int  # positions in its work of the communication of dispatch and combine
    waits: Int  # event rows of calls in the dispatch that wait for the GPU
    share: float  # of the copies of tokens that are left if each rank gets a token once; 1 if unknown
    micro_batches: int  # per step
    communication: Bool  # which of its work is communication


class OverlapPairs(NamedTuple):
    """GEMMs of one rank that do not overlap the collective of their tensor."""

    row: Int  # position of the collective in the rank's work
    gemm_ns: Int  # GPU time of the GEMM
    least_ns: Float  # of both together at the speed of light, 0 if unknown
    reason: str  # why there are none, "" if there are


class Stretches(NamedTuple):
    """From the end of one collective to the arrival at the next, of all ranks, by rank and time."""

    arrival: Int  # node at its end
    rank: Int  # index of the trace
    begin: Int  # ns by the common clock
    dur: Int  # ns; 0 or less where collectives overlap
    # median ns of the other ranks' stretches before the same collective, at most its own duration; that where
    # the ranks come from different collectives, or one of them has not left its last
    others_ns: Float


@scenario("all_to_all_bandwidth", argument="=GB/s (or 2x)", usual=("2x",))
def all_to_all_bandwidth(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """All-to-alls run at the specified bus bandwidth, or at a multiple of the measured one.

    Assumes:
        Transfers take the bytes of the largest rank at that rate, without latency.
    """
    rate = number(argument.removesuffix("x"), f"all_to_all_bandwidth={argument}")
    meetings, all_to_alls = _all_to_alls(context)
    if argument.endswith("x"):
        edit.set_dur(meetings, edit.dur[meetings] / rate)
        return f"{len(meetings):,} all-to-alls transfer {rate:g}x as fast, latency included"
    size = np.array([collective.bytes for collective in all_to_alls], dtype=np.int64)
    known = size >= 0
    if not known.any():
        raise NotApplicable("the trace has no message sizes of the all-to-alls")
    factor = np.array(
        [
            bus_factor(collective.collective, collective.participants[0].record.size)
            for collective in all_to_alls
        ]
    )
    edit.set_dur(meetings[known], (size * factor / rate)[known])
    return (
        f"{int(known.sum()):,} all-to-alls take the bytes of the largest rank / {rate:g} GB/s bus bandwidth, "
        "without latency"
    )


@scenario("all_to_all_hidden")
def all_to_all_hidden(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """All-to-all transfers are fully overlapped: nothing waits for them.

    Assumes:
        Ranks still wait for the last one to arrive, and overlapped kernels do not slow down.
    """
    graph, (meetings, _) = context.graph, _all_to_alls(context)
    edit.dur[meetings] = 0
    edit.lag[(graph.edge == Edge.TRANSFER) & np.isin(graph.src, meetings)] = 0
    return (
        f"the transfer of {len(meetings):,} all-to-alls takes no time; ranks still wait for the last to "
        "arrive, and overlapped kernels are not slowed down"
    )


def _all_to_alls(context: ScenarioContext) -> tuple[Int, list[MatchedCollective]]:
    """The nodes of the all-to-alls' meetings, and the all-to-alls.

    Raises:
        NotApplicable: there are none that several ranks recorded.
    """
    nodes, collectives = context.meetings()
    rows = [
        row for row, collective in enumerate(collectives) if collective.collective.startswith(ALL_TO_ALLS)
    ]
    if not rows:
        raise NotApplicable(
            "no all-to-all recorded on several ranks; one rank alone does not separate transfer from waiting"
        )
    return nodes[rows], [collectives[row] for row in rows]


def exchange(trace: Trace, device: Device | None) -> TokenExchange:
    """The exchange of tokens of a rank."""
    layers, calls = trace.once(regions), trace.once(blocking)
    communication = trace.work.kind == WORK_KINDS.index("comm")
    rows = np.flatnonzero(communication & np.isin(layers.stage, (DISPATCH, COMBINE)))
    waits = calls.event[(calls.layer_pass >= 0) & (calls.stage == DISPATCH)]
    micro_batches = max((layer_pass.micro_batch for layer_pass in layers.passes), default=-1) + 1
    share = deduplicated_share(trace) if len(rows) else 1.0
    return TokenExchange(rows, waits, share, micro_batches, communication)


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
    waits = [part.waits for part in by_rank] if argument == "deepep" else []
    count = unblock(graph, edit, marked_calls(graph, waits, Node.WAITED))
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
    micro_batches = min(part.micro_batches for part in by_rank)
    if micro_batches < 2:
        raise NotApplicable("one micro-batch per step: there is no other to overlap with")
    step = context.recorded.windows[0].step_of
    computes = np.zeros(len(graph), dtype=bool)
    for rank, part in enumerate(by_rank):
        nodes = graph.nodes(rank, Node.WORK)
        computes[nodes] = ~part.communication[graph.work[nodes]]
    paired = (micro_batches - 1) / micro_batches
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
        f"computation: all but those of one of {micro_batches} micro-batches, as far as there is "
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


@scenario("hierarchical_all_reduce")
def hierarchical_all_reduce(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """Collectives across hosts are hierarchical: first within each host, then across hosts.

    Assumes:
        Over H hosts, (H-1)/H of the bytes cross them, at the measured rate. Waiting for late ranks stays.
    """
    meetings, collectives = context.meetings()
    spans = spans_of(context.recorded.collectives.aligned.ranks, collectives)
    if isinstance(spans, str):
        raise NotApplicable(spans)
    if reason := spans.reason():
        raise NotApplicable(reason)
    _, inside_known = spans.expected()
    gain = spans.gain()
    edit.set_dur(meetings, edit.dur[meetings] * (1 - gain))
    links = "as measured in this run" if inside_known else "free where this run has none of their size"
    return (
        f"{int((gain > 0).sum()):,} collectives send (H-1)/H instead of (n-1)/n of their bytes between "
        f"H hosts, at the measured rate; transfers within a host are {links}; waiting for late ranks stays"
    )


def overlap_pairs(trace: Trace, device: Device | None) -> OverlapPairs:
    """GEMMs of a rank that could overlap a collective and do not."""
    step = StepWork(trace, device)
    empty = np.empty(0, dtype=np.int64)
    if not len(step.work.event):
        return OverlapPairs(empty, empty, np.empty(0), "no GPU work")
    gemms = pairs(step)
    if isinstance(gemms, str):
        return OverlapPairs(empty, empty, np.empty(0), gemms)
    _, serial = exposed_pairs(step, gemms)
    if not serial.any():
        reason = f"the collectives of all {len(serial)} tensor-parallel GEMMs are overlapped"
        return OverlapPairs(empty, empty, np.empty(0), reason)
    least_ns = speed_of_light(gemms, device)
    return OverlapPairs(step.rows[gemms.row[serial]], gemms.gemm_ns[serial], least_ns[serial], "")


@scenario("gemm_collective_overlap", reads=(overlap_pairs,))
def gemm_collective_overlap(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """GEMMs overlap the collective of their tensor: the longer of both remains (GEMM+RS, AG+GEMM).

    Assumes:
        GEMM and transfer both run at full speed, but no faster than the device allows. Waiting for late ranks
        stays.
    """
    graph, by_rank = context.gpu_graph(), context.read(overlap_pairs)
    if all(part.reason for part in by_rank):
        raise NotApplicable("; ".join(dict.fromkeys(part.reason for part in by_rank)))
    gemm_ns, least_ns = (np.zeros(len(graph)) for _ in range(2))
    for rank, part in enumerate(by_rank):
        nodes = graph.nodes(rank, Node.WORK, Node.ARRIVE)
        row, first = np.unique(graph.work[nodes], return_index=True)
        node = nodes[first[np.searchsorted(row, part.row)]]
        gemm_ns[node], least_ns[node] = part.gemm_ns, part.least_ns
    # A meeting hides no more than behind the shortest of its ranks' GEMMs.
    arrival = np.flatnonzero(graph.edge == Edge.ARRIVAL)
    met = unique(graph.dst[arrival])
    gemm_ns[met] = np.inf
    np.minimum.at(gemm_ns, graph.dst[arrival], gemm_ns[graph.src[arrival]])
    np.maximum.at(least_ns, graph.dst[arrival], least_ns[graph.src[arrival]])
    gemm_ns[graph.kind == Node.ARRIVE] = 0
    rows = np.flatnonzero((gemm_ns > 0) & (graph.dur > 0))
    own_ns = graph.dur[rows].astype(float)
    together_ns = np.maximum(np.maximum(gemm_ns[rows], own_ns), least_ns[rows])
    hidden_ns = np.clip(gemm_ns[rows] + own_ns - together_ns, 0, own_ns)
    edit.set_dur(rows, edit.dur[rows] * (1 - hidden_ns / np.maximum(own_ns, 1)))
    return (
        f"{len(rows):,} transfers hide {duration(hidden_ns.sum())} behind their GEMMs: of each pair the "
        "longer one remains, at least the speed of light where the device is known; both run at full "
        "speed, and waiting for late ranks stays"
    )


@scenario("median_pace", argument="=RANK")
def median_pace(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """Between two collectives no rank, or not RANK, takes longer than the median of the others.

    Assumes:
        Kernels, host time and delays shrink alike. Extra work of a rank disappears instead of moving to the
        others, as it does in `balanced`.
    """
    graph = context.graph
    ranks = [rank.number for rank in graph.ranks]
    if argument and argument not in map(str, ranks):
        raise TracelensError(f"scenario median_pace={argument}: no such rank in the run")
    stretches = _stretches(context)
    late = stretches.others_ns < stretches.dur
    if argument:
        late &= stretches.rank == ranks.index(int(argument))
    if not late.any():
        raise NotApplicable("no rank is later than the others at a collective recorded on several ranks")
    factor = np.where(late, stretches.others_ns / np.maximum(stretches.dur, 1), 1.0)
    # Nodes take the factor of the stretch that they are in, calls that of the work that they launch.
    factor_of = np.ones(len(graph))
    for rank in unique(stretches.rank[factor < 1]).tolist():
        own = np.flatnonzero(stretches.rank == rank)
        busy = graph.nodes(rank, Node.WORK, Node.ARRIVE)
        row = np.searchsorted(graph.start[stretches.arrival[own]], graph.start[busy])
        busy, stretch = busy[row < len(own)], own[row[row < len(own)]]
        inside = graph.start[busy] >= stretches.begin[stretch]
        factor_of[busy[inside]] = factor[stretch[inside]]
        of_calls(graph, rank, factor_of)
    scale_pace(graph, edit, factor_of)
    late_ns = np.where(late, stretches.dur - stretches.others_ns, 0)
    excess_ns = np.bincount(stretches.rank, late_ns, len(ranks))
    worst = int(excess_ns.argmax())
    return (
        f"{int(late.sum()):,} stretches between two collectives take as long as the median of the other "
        f"ranks, {duration(excess_ns.sum())} less over all ranks, {duration(excess_ns[worst])} on rank "
        f"{ranks[worst]}: kernels, host time and delays in them shrink alike, random ones as well; extra "
        "work of a rank disappears instead of moving to the others (see balanced)"
    )


def _stretches(context: ScenarioContext) -> Stretches:
    """The stretches of all ranks; sends and receives are the pipeline's own pace and do not count."""
    graph, (meetings, collectives) = context.graph, context.meetings()
    names = [collective.collective for collective in collectives]
    sizes = [collective.participants[0].record.size for collective in collectives]
    kinds = {kind: code for code, kind in enumerate(dict.fromkeys(zip(names, sizes, strict=True)))}
    kind_of = np.full(len(graph), -1, dtype=np.int64)
    kind_of[meetings] = [
        kinds[kind] if kind[0] != SEND_RECV else -1 for kind in zip(names, sizes, strict=True)
    ]
    edge = np.flatnonzero((graph.edge == Edge.ARRIVAL) & (kind_of[graph.dst] >= 0))
    edge = edge[np.lexsort((graph.start[graph.src[edge]], graph.rank[graph.src[edge]]))]
    arrival, meeting = graph.src[edge], graph.dst[edge]
    rank, kind = graph.rank[arrival], kind_of[meeting]
    # The end of each arrival's kernel; it may serve several collectives.
    leave = np.flatnonzero(graph.kind == Node.LEAVE)
    both = np.concatenate((leave, arrival))
    kernel = graph.rank[both] * (int(graph.work.max(initial=0)) + 1) + graph.work[both]
    _, own = np.unique(kernel, return_inverse=True)
    end_of = np.zeros(int(own.max(initial=-1)) + 1, dtype=np.int64)
    np.maximum.at(end_of, own[: len(leave)], graph.end[leave])
    end = end_of[own[len(leave) :]]
    first = np.concatenate(([True], rank[1:] != rank[:-1])) if len(rank) else np.zeros(0, dtype=bool)
    before = np.where(first, -1, np.roll(kind, 1))
    begin = graph.start[arrival].copy()
    for index in unique(rank).tolist():
        rows = np.flatnonzero(rank == index)
        begin[rows[1:]] = np.maximum.accumulate(end[rows])[:-1]
    dur = graph.start[arrival] - begin
    # The median of the others, of collectives with as many ranks at once.
    others_ns = dur.astype(float)
    group, (_,) = codes(meeting)
    count = np.bincount(group)
    lowest = np.full(len(count), np.iinfo(np.int64).max)
    highest = np.full(len(count), -1, dtype=np.int64)
    np.minimum.at(lowest, group, np.where(dur > 0, before, -1))
    np.maximum.at(highest, group, before)
    comparable = (lowest == highest) & (lowest >= 0)
    order = np.argsort(group, kind="stable")
    first_row = np.concatenate(([0], np.cumsum(count)[:-1]))
    for size in unique(count[count > 1]).tolist():
        same = np.flatnonzero((count == size) & comparable)
        rows = order[first_row[same][:, None] + np.arange(size)]
        dur_ns = dur[rows]
        for column in range(size):
            others_ns[rows[:, column]] = np.median(np.delete(dur_ns, column, axis=1), axis=1)
    return Stretches(arrival, rank, begin, dur, np.minimum(others_ns, dur))


def regathers(trace: Trace, device: Device | None) -> Regathers:
    """What a rank gathers again in a step."""
    return trace.once(regathers_of)


@scenario("keep_parameters", reads=(regathers,))
def keep_parameters(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """Sharded parameters stay on the GPU from forward to backward pass (FSDP2: reshard_after_forward=False).

    Assumes:
        What gathers the parameters of a module again, for a backward pass, goes, with its copies, calls and
        host time. Their memory stays in use until the backward pass is through the module.
    """
    graph, by_rank = context.gpu_graph(), context.read(regathers)
    work = marked(graph, [part.rows for part in by_rank])
    if not work.any():
        raise NotApplicable("no module whose parameters are gathered twice in a step by FSDP2")
    calls = marked_calls(graph, [part.event for part in by_rank], Node.POINT, Node.WAITED)
    meetings = np.flatnonzero(meetings_of(graph, work))
    matched = context.recorded.collectives.matched
    gathered = [
        matched[number].participants[0].record.bytes for number in graph.collective[meetings].tolist()
    ]
    steps = len(context.recorded.windows)
    # One module's parameters are in use in any case.
    more = sum(gathered) / steps - max(gathered, default=0)
    transfer_ns = float(edit.dur[meetings].sum()) / steps
    drop_work(graph, edit, work, calls)
    return (
        f"{len(meetings) / steps:,.0f} all-gathers a step go, {duration(transfer_ns)} of transfers, with "
        f"their copies and calls; each GPU holds {amount(more, 'bytes')} of parameters more as the backward "
        "pass begins"
    )

"""Tokens on their way to experts and back: all-to-alls and gathers, exposed, faster, hidden or sent once."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from tracelens.analysis.comm import MatchedCollective, collective_kinds
from tracelens.analysis.moe import (
    BACKWARD,
    COMBINE,
    DISPATCH,
    STAGES,
    blocking,
    deduplicated_share,
    regions,
    token_messages,
)
from tracelens.arrays import Bool, Int
from tracelens.devices import Device, bus_factor
from tracelens.errors import TracelensError
from tracelens.findings import Detection, Outcome, Quantity, RankContext, Remedy, detector
from tracelens.trace import WORK_KINDS, Trace, collectives, difference, intersection, rows_by_code
from tracelens.units import amount, duration
from tracelens.what_if import NotApplicable, ScenarioContext, number, scenario
from tracelens.what_if.graph import ALL_TO_ALLS, Edge, Edit, Node, marked, marked_calls, meetings_of, unblock

HIDDEN_SHARE = 0.001
"""A smaller exposed share of the all-to-all is the edge between two kernels."""

_ALL_TO_ALL, _GATHERS, _MESSAGES = ("all_to_all",), ("all_gather", "reduce_scatter"), ("send_recv",)
_EXCHANGE_MEASURES = {
    "exposed per step": "part of it without computation",
    "overlap efficiency": "hidden / all of it",
    "overlap efficiency, bound": "the same if all other computation overlapped it",
    "sent in forward dispatches per step": "input of the forward dispatches, where recorded",
    "share after de-duplication": "bytes left if each rank got a token once, with experts chosen at random",
}
_EXCHANGE_THRESHOLD = f"over {HIDDEN_SHARE:.1%} of the time is exposed"
_EXCHANGE_LIMITS = (
    "Includes waiting for late ranks, which no overlap removes; see the findings about stragglers."
)


@detector(
    "exposed_all_to_all",
    evidence="overlap",
    scenario="all_to_all_hidden",
    title="Exposed all-to-all",
    fix="hiding the all-to-all",
    symptom=True,  # of ranks that come late: much of it is waiting for them
    measures={
        "all-to-all per step": "time with an all-to-all running, waiting included",
        **_EXCHANGE_MEASURES,
    },
    threshold=_EXCHANGE_THRESHOLD,
    limits=_EXCHANGE_LIMITS,
    remedy="Overlap the all-to-all of one micro-batch with the computation of another, and send each token "
    "only once per rank.",
    remedies=(
        Remedy(
            "Primus: overlap_moe_expert_parallel_comm for 1F1B overlap, use_turbo_deepep for the all-to-all.",
            framework=("primus",),
            vendor=("amd",),
            best=True,
        ),
        Remedy(
            "Megatron-LM: --overlap-moe-expert-parallel-comm (with pipeline parallelism it needs virtual "
            "stages; not with --moe-shared-expert-overlap or full recompute) and --delay-wgrad-compute; "
            "DeepEP: --moe-token-dispatcher-type flex --moe-flex-dispatcher-backend deepep.",
            framework=("megatron",),
            best=True,
        ),
        Remedy(
            "vLLM: --enable-dbo (dual-batch overlap), and a DeepEP backend with --all2all-backend.",
            framework=("vllm",),
        ),
        Remedy("SGLang: --enable-two-batch-overlap, with --moe-a2a-backend deepep.", framework=("sglang",)),
        Remedy("ATOM: --enable-tbo (two-batch overlap).", framework=("atom",)),
        Remedy("The bundled workload: --overlap-exchange 1f1b, --dispatch dedup.", framework=("workload",)),
        Remedy(
            "In torch: all_to_all_single(async_op=True) on a stream of its own, with the wait where its "
            "tokens are used.",
            plain=True,
        ),
    ),
)
def exposed_all_to_all(context: RankContext) -> Outcome:
    """Exposed all-to-all: dispatch and combine of MoE layers, or others."""
    is_all_to_all = _all_to_all(context)
    if not is_all_to_all.any():
        return "no all-to-all, in MoE layers or elsewhere"
    return _exposed(context, is_all_to_all, "all-to-all")


@detector(
    "exposed_token_gather",
    evidence="overlap",
    title="Exposed all-gather and reduce-scatter of tokens",
    fix="hiding the exchange of tokens",
    symptom=True,
    measures={
        "all-gather and reduce-scatter per step": "time with one of them running, waiting included",
        **_EXCHANGE_MEASURES,
    },
    threshold=_EXCHANGE_THRESHOLD,
    limits=_EXCHANGE_LIMITS,
    remedy="Overlap the collectives with the computation of another batch, gather each rank's own token "
    "count instead of padding, or send tokens only to the ranks of their experts (all-to-all).",
    remedies=(
        Remedy(
            "Megatron-LM: --moe-token-dispatcher-type alltoall, or flex with DeepEP.", framework=("megatron",)
        ),
        Remedy("Primus: moe_token_dispatcher_type alltoall, or use_turbo_deepep.", framework=("primus",)),
        Remedy(
            "vLLM: --enable-expert-parallel with another --all2all-backend; --enable-dbo overlaps two "
            "batches.",
            framework=("vllm",),
        ),
        Remedy("SGLang: --moe-a2a-backend deepep; --enable-two-batch-overlap.", framework=("sglang",)),
        Remedy("ATOM: --enable-tbo (two-batch overlap).", framework=("atom",)),
        Remedy("The bundled workload: --dispatch alltoall.", framework=("workload",)),
        Remedy(
            "The bundled workload: --tbo token overlaps the halves of prefills.",
            framework=("workload_serve",),
        ),
    ),
)
def exposed_token_gather(context: RankContext) -> Outcome:
    """Exposed dispatch by all-gather and combine by reduce-scatter in MoE layers without an all-to-all."""
    if _all_to_all(context).any():
        return "tokens are dispatched by all-to-all"
    gathers = _exchanges(context.trace)[context.rows] & _is(context, _GATHERS)
    if not gathers.any():
        return "no dispatch by all-gather, no combine by reduce-scatter"
    return _exposed(context, gathers, "all-gather and reduce-scatter")


def _exposed(context: RankContext, exchange: Bool, name: str) -> Outcome:
    """What of the exchange of tokens no computation hides."""
    exchanging, computing = context.during(exchange), context.work.union("computation")
    exposed = difference(exchanging, computing)
    if exposed.total <= HIDDEN_SHARE * exchanging.total:
        return f"the {name} is hidden under computation"
    hidden = intersection(exchanging, computing).total
    # Computation that hides something already cannot hide more, and cannot hide more than its own time.
    free = computing.total - hidden
    most = min(exposed.total, free)
    bound = (hidden + most) / exchanging.total
    quantities = [
        Quantity(f"{name} per step", context.per_step(exchanging.total), "ns"),
        Quantity("exposed per step", context.per_step(exposed.total), "ns"),
        Quantity("overlap efficiency", hidden / exchanging.total, "fraction"),
        Quantity("overlap efficiency, bound", bound, "fraction"),
    ]
    details = ""
    # Bytes that go into the dispatches of forward passes.
    layers = context.trace.once(regions)
    rows, work = context.trace.once(token_messages)
    inside = np.isin(work, context.rows) & (layers.stage[work] == DISPATCH) & (layers.phase[work] != BACKWARD)
    size = context.trace.tables["collectives"].array("in_bytes")[rows[inside]]
    if sent := int(size[size > 0].sum()):
        quantities.append(Quantity("sent in forward dispatches per step", context.per_step(sent), "bytes"))
        details = f"; forward dispatches send {amount(context.per_step(sent), 'bytes')}/step"
    if (share := deduplicated_share(context.trace)) < 1:
        quantities.append(Quantity("share after de-duplication", share, "fraction"))
        details += f"; de-duplication would cut it to {share:.0%}"
    return Detection(
        tuple(quantities),
        context.per_step(most),
        exposed,
        f"{context.per_step(exposed.total) / 1e6:,.1f} of {context.per_step(exchanging.total) / 1e6:,.1f} "
        f"ms/step of {name} (including waiting) is exposed: {hidden / exchanging.total:.0%} hidden, "
        f"{bound:.0%} possible{details}",
        "low",
    )


def _exchanges(trace: Trace) -> Bool:
    """Which work of a rank is communication in the dispatch or combine of MoE layers."""
    inside: Bool = (trace.work.kind == WORK_KINDS.index("comm")) & np.isin(
        trace.once(regions).stage, (DISPATCH, COMBINE)
    )
    return inside


def _is(context: RankContext, names: tuple[str, ...]) -> Bool:
    """Which work is one of these collectives."""
    codes = [collectives().index(name) for name in names]
    result: Bool = np.isin(context.trace.once(collective_kinds)[context.rows], codes)
    return result


def _all_to_all(context: RankContext) -> Bool:
    """Which work is all-to-all by its record or name.

    In dispatch and combine also sends and receives, and what neither record nor name tells.
    """
    untold = context.trace.once(collective_kinds)[context.rows] < 0
    exchanges = _exchanges(context.trace)[context.rows]
    result: Bool = _is(context, _ALL_TO_ALL) | (exchanges & (untold | _is(context, _MESSAGES)))
    return result


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


class TokenExchange(Struct, frozen=True):
    """The exchange of tokens of one rank."""

    rows: Int  # positions in its work of the communication of dispatch and combine
    waits: Int  # event rows of calls in the dispatch that wait for the GPU
    share: float  # of the copies of tokens that are left if each rank gets a token once; 1 if unknown
    micro_batches: int  # per step
    communication: Bool  # which of its work is communication


def exchange(trace: Trace, device: Device | None) -> TokenExchange:
    """The exchange of tokens of a rank."""
    layers, calls, rows = trace.once(regions), trace.once(blocking), np.flatnonzero(_exchanges(trace))
    communication = trace.work.kind == WORK_KINDS.index("comm")
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
    meetings = np.flatnonzero(_meetings(context))
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
    is_exchange = _meetings(context)
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


def _meetings(context: ScenarioContext) -> Bool:
    """Which nodes are meetings of a dispatch or combine.

    Raises:
        NotApplicable: there are none that several ranks recorded.
    """
    graph = context.graph
    exchanges = meetings_of(graph, marked(graph, [part.rows for part in context.read(exchange)]))
    if not exchanges.any():
        raise NotApplicable("no dispatch or combine of an MoE layer recorded on several ranks")
    return exchanges

"""Serving engines: ranks that prefill in the same steps (prefill delayer), and steps run as two batches."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from tracelens.analysis.serving import GlobalStep, RankSteps, by_one_clock, global_steps, rank_steps
from tracelens.arrays import Int, lookup
from tracelens.devices import Device
from tracelens.table import codes, sums
from tracelens.trace import Trace, rows_by_code
from tracelens.what_if.graph import Edge, Edit, Node, RunGraph
from tracelens.what_if.scenario import NotApplicable, ScenarioContext, efficiency, scenario

_PREFILLS = ("prefill", "mixed")


class StepOutcome(NamedTuple):
    """What becomes of a step."""

    decodes: bool  # all ranks decode, and its prompts wait
    token_factor: float = 1.0  # growth of the most tokens that a rank prefills in it


class ServingRank(NamedTuple):
    """What the serving scenarios read of a rank."""

    steps: RankSteps
    calls: Int  # event rows of its runtime calls; none where it has no steps
    kernel_ns: int  # of its shortest kernel, 0 without any


class ServingSteps(NamedTuple):
    """The global steps of a run."""

    steps: list[GlobalStep]  # in order of time
    of_node: Int  # index into `steps` of each node, -1 for none


def serving_rank(trace: Trace, device: Device | None) -> ServingRank:
    """The labeled steps of a rank, and what its engine launches at least."""
    steps = trace.once(rank_steps)
    calls = np.flatnonzero(trace.arrays.where("launch") if steps.steps else np.zeros(0, dtype=bool))
    kernel_ns = trace.work.dur[trace.work.is_kernel & (trace.work.dur > 0)]
    return ServingRank(steps, calls, int(kernel_ns.min()) if len(kernel_ns) else 0)


@scenario("prefill_delayer", reads=(serving_rank,))
def prefill_delayer(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """Serving ranks hold prompts back until others prefill too: no rank decodes while another prefills.

    Assumes:
        Requests arrive as recorded; prompts join the next step in which another rank prefills, without a
        token limit, and those without a partner stay.
    """
    graph, serving = context.graph, serving_steps(context)
    mismatched = sum(step.mismatch for step in serving.steps)
    if not mismatched:
        raise NotApplicable("all ranks are in the same phase in every step")
    outcomes = delayed(serving.steps)
    decodes = np.array([outcome.decodes for outcome in outcomes], dtype=bool)
    if not decodes.any():
        raise NotApplicable("no step with both prefill and decoding is followed by a prefill of another rank")
    decode_ns, source = _decode_ns(context, serving)
    dur_ns = np.array([step.dur_ns for step in serving.steps], dtype=np.int64)
    shrink = np.where(decodes, np.minimum(decode_ns / np.maximum(dur_ns, 1), 1.0), 1.0)
    factor = lookup(shrink, serving.of_node, 1.0)
    affected = lookup(decodes, serving.of_node, False)
    nodes = np.flatnonzero(affected)
    for values in (edit.dur, edit.delay):
        values[nodes] = np.rint(values[nodes] * factor[nodes]).astype(np.int64)
    step_of = serving.of_node
    inside = np.flatnonzero(affected[graph.src] & (step_of[graph.src] == step_of[graph.dst]))
    edit.lag[inside] = np.rint(edit.lag[inside] * factor[graph.src[inside]]).astype(np.int64)
    growth = np.array([1.0 if step.decodes else max(step.token_factor, 1.0) for step in outcomes])
    longer = lookup(growth, step_of, 1.0)
    busy = np.flatnonzero((longer > 1) & np.isin(graph.kind, (Node.WORK, Node.MEET)))
    edit.set_dur(busy, edit.dur[busy] * longer[busy])
    return (
        f"{decodes.sum()} of {mismatched} steps with both prefill and decoding "
        f"({dur_ns[decodes].sum() / 1e6:,.1f} ms) become pure decode steps, {source}; their prompts join "
        "the next step in which another rank prefills; its GPU work and transfers grow with the tokens of "
        "the rank with the most, without a token limit; requests arrive as recorded; prompts without a "
        "partner stay"
    )


def delayed(steps: Sequence[GlobalStep]) -> list[StepOutcome]:
    """What a delayer makes of the steps: prompts wait for the next step in which another rank prefills.

    A step with prefill beside decoding becomes a decode step if its prompts meet such a step later on; one
    in which waiting ranks and others prefill together takes as long as the rank with most tokens needs.
    """
    outcomes = [StepOutcome(False) for _ in steps]
    waiting: dict[int, int] = {}
    since: list[int] = []
    for number, step in enumerate(steps):
        prefills = {
            rank: max(rank_step.label.tokens, 0)
            for rank, rank_step in step.rank_steps
            if rank_step.label.kind in _PREFILLS and not rank_step.label.dummy
        }
        if not prefills:
            continue
        if step.mismatch and set(waiting) <= set(prefills):
            for rank, tokens in prefills.items():
                waiting[rank] = waiting.get(rank, 0) + tokens
            since.append(number)
        elif waiting:
            most = max(prefills.values())
            together = max(
                prefills.get(rank, 0) + waiting.get(rank, 0) for rank in prefills.keys() | waiting.keys()
            )
            outcomes[number] = StepOutcome(False, together / max(most, 1))
            for waiting_step in since:
                outcomes[waiting_step] = StepOutcome(True)
            waiting, since = {}, []
    return outcomes


def _decode_ns(context: ScenarioContext, serving: ServingSteps) -> tuple[float, str]:
    """Duration of a step in which all ranks decode, ns, and its source.

    The median of those in the recording. Without any: of the mismatched steps the one in which a decoding
    rank had least work, and that work and its transfers alone, as a CUDA graph would replay them. Beside a
    prefill ranks replay no graphs, and compute its tokens in their experts; so it is an upper bound of the
    work.
    """
    decode_steps = [step.dur_ns for step in serving.steps if step.phases == {"decode"}]
    if decode_steps:
        typical_ns = float(median(decode_steps))
        return typical_ns, f"as long as the recorded ones ({typical_ns / 1e6:,.2f} ms)"
    graph = context.graph
    index_of = {rank.number: index for index, rank in enumerate(graph.ranks)}
    work_ns = _sums_ns(graph, serving.of_node, graph.rank, Node.WORK)
    transfer_ns = _sums_ns(graph, serving.of_node, np.zeros_like(graph.rank), Node.MEET)
    decode_work = [
        float(work_ns.get((number, index_of[rank]), 0) + transfer_ns.get((number, 0), 0))
        for number, step in enumerate(serving.steps)
        if step.mismatch
        for rank, rank_step in step.rank_steps
        if rank_step.label.kind == "decode" and not rank_step.label.dummy
    ]
    if not decode_work:
        raise NotApplicable("no rank decodes in the steps whose ranks are in different phases")
    least_ns = min(decode_work)
    return least_ns, (
        f"as long as the least GPU work of a decoding rank ({least_ns / 1e6:,.2f} ms), replayed as a CUDA "
        "graph, since no pure decode step is recorded"
    )


def _sums_ns(graph: RunGraph, step: Int, part: Int, kind: Node) -> dict[tuple[int, int], int]:
    """(step, part) to the duration of all its nodes of a kind."""
    nodes = np.flatnonzero((step >= 0) & (graph.kind == kind))
    group, (steps, parts) = codes(step[nodes], part[nodes])
    total = sums(group, graph.dur[nodes], len(steps))
    return dict(zip(zip(steps.tolist(), parts.tolist(), strict=True), total.tolist(), strict=True))


@scenario("two_batch_overlap", argument="=EFFICIENCY", reads=(serving_rank,))
def two_batch_overlap(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """Prefill steps run as two batches: one computes while the other communicates.

    Assumes:
        Each half launches its own kernels, so host time doubles, and each kernel takes longer by the time of
        the shortest one. Waiting for late ranks does not hide.
    """
    share = efficiency(argument, f"two_batch_overlap={argument}") if argument else 1.0
    graph, serving = context.graph, serving_steps(context)
    prefills = [
        number
        for number, step in enumerate(serving.steps)
        if step.phases == {"prefill"} and not any(rank_step.step.two_batches for rank_step in step.rank_steps)
    ]
    if not prefills:
        raise NotApplicable("no step in which all ranks prefill and none already runs two batches")
    split = np.isin(serving.of_node, prefills)
    if not (split & (graph.kind == Node.MEET)).any():
        raise NotApplicable("no collective recorded on several ranks in the prefill steps")
    computes = np.zeros(len(graph), dtype=bool)
    for rank, own in enumerate(context.read(serving_rank)):
        nodes = graph.nodes(rank, Node.WORK)
        computes[nodes] = ~graph.ranks[rank].is_comm[graph.work[nodes]]
        edit.dur[nodes[split[nodes] & computes[nodes]]] += own.kernel_ns
    edit.lag[(graph.edge == Edge.HOST) & split[graph.src] & split[graph.dst]] *= 2
    transfer_ns, hidden_ns = 0.0, 0.0
    split_nodes = np.flatnonzero(split)
    for rows in rows_by_code(serving.of_node[split_nodes]).values():
        nodes = split_nodes[rows]
        meetings, computing = nodes[graph.kind[nodes] == Node.MEET], nodes[computes[nodes]]
        step_ns = float(edit.dur[meetings].sum())
        rank_ns = [
            float(edit.dur[computing[rows]].sum()) for rows in rows_by_code(graph.rank[computing]).values()
        ]
        overlap_ns = share * min(step_ns, *rank_ns) if rank_ns else 0.0
        edit.set_dur(meetings, edit.dur[meetings] * (1 - overlap_ns / max(step_ns, 1)))
        transfer_ns, hidden_ns = transfer_ns + step_ns, hidden_ns + overlap_ns
    bound = f"{share:g} of what fits" if argument else "all that fits, an upper bound"
    return (
        f"in {len(prefills)} prefill steps {hidden_ns / 1e6:,.2f} of {transfer_ns / 1e6:,.2f} ms of "
        f"transfers hide behind the other half's computation ({bound}); waiting for late ranks does not; "
        "each half is launched separately (2x host time), and each kernel takes longer by the shortest "
        "kernel's time"
    )


def serving_steps(context: ScenarioContext) -> ServingSteps:
    """The steps that all ranks of a serving run ran together.

    Raises:
        NotApplicable: there are no labeled steps, or no rank to compare with.
    """
    shift = context.recorded.collectives.aligned.shift
    ranks = by_one_clock([rank.steps for rank in context.read(serving_rank)], shift)
    labelled = [rank for rank in ranks if rank.steps]
    if not labelled:
        raise NotApplicable("no step labels of a serving engine in the trace")
    steps = global_steps(labelled)
    if not steps:
        raise NotApplicable("no step that several serving ranks ran together; pass the traces of all ranks")

    # The step of each node: GPU work by its time, a call by what it launches, a meeting by its end.
    graph = context.graph
    step_of = np.full(len(graph), -1, dtype=np.int64)
    windows: dict[int, list[tuple[int, int, int]]] = {}
    for step_number, global_step in enumerate(steps):
        for rank, step in global_step.rank_steps:
            windows.setdefault(rank, []).append((step_number, step.start, step.end))
    for index, rank in enumerate(rank.number for rank in graph.ranks):
        if rank not in windows:
            continue
        number, start, end = np.array(windows[rank], dtype=np.int64).T
        nodes = graph.of_rank[index][graph.work[graph.of_rank[index]] >= 0]
        latest = np.maximum(np.searchsorted(start, graph.start[nodes], side="right") - 1, 0)
        inside = (graph.start[nodes] >= start[latest]) & (graph.start[nodes] <= end[latest])
        step_of[nodes[inside]] = number[latest[inside]]
    launch = graph.edge == Edge.LAUNCH
    step_of[graph.src[launch]] = step_of[graph.dst[launch]]
    launches = np.zeros(len(graph), dtype=bool)
    launches[graph.src[launch]] = True
    for index, own in enumerate(context.read(serving_rank)):
        # A call that launches nothing belongs to what was launched before it; step marks are no calls.
        calls = graph.nodes(index, Node.POINT, Node.WAITED)
        calls = calls[np.isin(graph.event[calls], own.calls)]
        last = np.maximum.accumulate(np.where(launches[calls], np.arange(len(calls)), -1))
        step_of[calls] = lookup(step_of[calls], last, -1)
    transfer = (graph.edge == Edge.TRANSFER) & (graph.kind[graph.src] == Node.MEET)
    step_of[graph.src[transfer]] = step_of[graph.dst[transfer]]
    return ServingSteps(steps, step_of)

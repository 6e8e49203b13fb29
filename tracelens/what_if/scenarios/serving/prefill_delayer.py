"""Serving ranks prefill in the same steps: what a prefill delayer does."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from tracelens.analysis.serving import GlobalStep
from tracelens.arrays import Int, lookup
from tracelens.table import codes, sums
from tracelens.what_if.graph import Edit, Graph, Node
from tracelens.what_if.scenario import NotApplicable, ScenarioContext, scenario
from tracelens.what_if.scenarios.serving.serving_steps import ServingSteps, serving_rank, serving_steps

_PREFILLS = ("prefill", "mixed")


class StepOutcome(NamedTuple):
    """What becomes of a step."""

    decodes: bool  # all ranks decode, and its prompts wait
    token_factor: float = 1.0  # growth of the most tokens that a rank prefills in it


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


def _sums_ns(graph: Graph, step: Int, part: Int, kind: Node) -> dict[tuple[int, int], int]:
    """(step, part) to the duration of all its nodes of a kind."""
    nodes = np.flatnonzero((step >= 0) & (graph.kind == kind))
    group, (steps, parts) = codes(step[nodes], part[nodes])
    total = sums(group, graph.dur[nodes], len(steps))
    return dict(zip(zip(steps.tolist(), parts.tolist(), strict=True), total.tolist(), strict=True))

"""GPU work: kernels that take longer or shorter, and experts with the same work on all ranks."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from tracelens.analysis.moe import EXPERTS, regions
from tracelens.arrays import Bool, Int
from tracelens.devices import Device
from tracelens.errors import TracelensError
from tracelens.table import codes
from tracelens.trace import Trace, matching, rows_by_code, wildcards
from tracelens.what_if.graph import Edit, Node
from tracelens.what_if.replay import labels
from tracelens.what_if.scenario import NotApplicable, ScenarioContext, number, scenario


@scenario("scale", argument=":PATTERN=FACTOR", usual=())
def scale(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """GPU work whose kernel, op, collective or class matches PATTERN takes FACTOR times as long.

    Assumes:
        Everything else stays the same.
    """
    text, equals, factor_text = argument.rpartition("=")
    if not equals or not text:
        raise TracelensError(f"scenario scale:{argument}: write scale:PATTERN=FACTOR, as in scale:gemm=0.5")
    factor = 0.0 if factor_text.strip() == "0" else number(factor_text, f"scale:{argument}")
    pattern, graph = wildcards(text), context.graph
    matches = np.zeros(len(graph), dtype=bool)
    for column in labels(context.recorded):
        matches |= matching(column.values, pattern)[column.codes]
    nodes = np.flatnonzero(matches & (graph.dur > 0))
    if not len(nodes):
        raise NotApplicable(f"no kernel, op, collective or kernel class matches {text!r}")
    edit.set_dur(nodes, edit.dur[nodes] * factor)
    return f"{len(nodes):,} activities take {factor:g}x as long; everything else stays the same"


class ExpertWork(NamedTuple):
    """Activities of a rank in MoE layers, aligned with its trace's `work`."""

    layer_pass: Int  # number of the pass through a layer, -1 outside
    phase: Int  # code into PHASES, -1 outside
    in_experts: Bool  # whether it is routed experts' work


def expert_work(trace: Trace, device: Device | None) -> ExpertWork:
    """Which activities of a rank are in MoE layers."""
    layers = trace.once(regions)
    return ExpertWork(layers.layer_pass, layers.phase, layers.stage == EXPERTS)


@scenario("balanced", reads=(expert_work,))
def balanced(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """All ranks have equal routed-expert work: the mean over ranks in each layer and pass.

    Assumes:
        Messages keep their sizes.
    """
    graph = context.graph
    if len(graph.ranks) < 2:
        raise NotApplicable("a single rank does not show the imbalance between ranks")
    group = _expert_groups(context)
    work_of_rank = [
        {(group[rank], *key): nodes for key, nodes in _expert_work(context, rank).items()}
        for rank in range(len(graph.ranks))
    ]
    column = {
        key: number for number, key in enumerate(dict.fromkeys(key for work in work_of_rank for key in work))
    }
    total = np.zeros((len(work_of_rank), len(column)))
    for rank, work in enumerate(work_of_rank):
        for key, nodes in work.items():
            total[rank, column[key]] = edit.dur[nodes].sum()
    ranks = Counter(group)
    size = np.array([ranks[key[0]] for key in column], dtype=np.int64)
    common = ((total > 0).sum(axis=0) == size) & (size > 1)
    if not common.any():
        raise NotApplicable("no MoE layer whose routed experts ran on several recorded ranks")
    mean = total.sum(axis=0) / np.maximum(size, 1)
    for rank, work in enumerate(work_of_rank):
        for key, nodes in work.items():
            if common[column[key]]:
                edit.set_dur(nodes, edit.dur[nodes] * (mean[column[key]] / total[rank, column[key]]))
    imbalance = total.max(axis=0)[common].sum() / mean[common].sum()
    return f"the busiest rank's routed experts take {imbalance:.2f}x the mean; messages keep their sizes"


def _expert_groups(context: ScenarioContext) -> list[int]:
    """The expert-parallel group of each rank: ranks that exchange tokens in their MoE layers."""
    ranks, collectives, layers = context.graph.ranks, context.recorded.collectives, context.read(expert_work)
    index_of = {rank.number: index for index, rank in enumerate(ranks)}
    group = list(range(len(ranks)))
    for collective in collectives.matched:
        kernels = [(index_of[member.rank], member.record.kernel) for member in collective.participants]
        passes = [layers[rank].layer_pass[collectives.work[rank][kernel]] for rank, kernel in kernels]
        joined = {group[rank] for rank, _ in kernels}
        if min(passes) >= 0 and len(joined) > 1:
            group = [min(joined) if number in joined else number for number in group]
    return group


def _expert_work(context: ScenarioContext, rank: int) -> dict[tuple[int, int], Int]:
    """(pass through an MoE layer, phase) of a rank to the nodes of its routed experts' work."""
    graph = context.graph
    layers = context.read(expert_work)[rank]
    nodes = graph.nodes(rank, Node.WORK)
    work = graph.work[nodes]
    inside = (layers.layer_pass[work] >= 0) & layers.in_experts[work]
    nodes, work = nodes[inside], work[inside]
    group, (layer_pass, phase) = codes(layers.layer_pass[work], layers.phase[work])
    rows = rows_by_code(group)
    return {
        key: nodes[rows[number]]
        for number, key in enumerate(zip(layer_pass.tolist(), phase.tolist(), strict=True))
    }

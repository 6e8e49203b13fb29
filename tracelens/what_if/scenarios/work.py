"""GPU work: kernels that take longer or shorter, and experts with the same work on all ranks."""

from __future__ import annotations

from collections import Counter

import numpy as np

from tracelens.analysis.moe import EXPERTS, regions
from tracelens.arrays import Int
from tracelens.errors import TracelensError
from tracelens.trace import matching, rows_by_code, wildcards
from tracelens.what_if.graph import WORK, Edit, whole_ns
from tracelens.what_if.replay import labels
from tracelens.what_if.scenario import NotApplicable, ScenarioContext, number, scenario


@scenario("scale", argument=":PATTERN=FACTOR", usual=())
def scale(scene: ScenarioContext, edit: Edit, argument: str) -> str:
    """Work takes FACTOR times as long whose kernel, op, collective or class fits, as gemm or *attention*."""
    text, mark, factor = argument.rpartition("=")
    if not mark or not text:
        raise TracelensError(f"scenario scale:{argument}: write scale:PATTERN=FACTOR, as in scale:gemm=0.5")
    times = number(factor, f"scale:{argument}")
    pattern = wildcards(text)
    graph, found = scene.recorded.graph, labels(scene.recorded)
    fits = matching(found.name.values, pattern)[found.name.codes]
    fits = fits | matching(found.category.values, pattern)[found.category.codes]
    (chosen,) = np.nonzero(fits & (graph.dur > 0))
    if not len(chosen):
        raise NotApplicable(f"no work of which the kernel, op, collective or class fits {text!r}")
    edit.dur[chosen] = whole_ns(edit.dur[chosen] * times, edit.dur[chosen])
    return f"{len(chosen):,} pieces of work take {times:g} times as long; all else stays as it is"


@scenario("balanced")
def balanced(scene: ScenarioContext, edit: Edit, argument: str) -> str:
    """All ranks have the same routed experts' work: in each layer and pass the mean over the ranks."""
    graph = scene.recorded.graph
    if len(graph.run.traces) < 2:
        raise NotApplicable("one rank alone does not show how uneven the ranks are")
    group = _together(scene)
    parts = [
        {(group[at], *key): nodes for key, nodes in _experts(scene, at).items()}
        for at in range(len(graph.run.traces))
    ]
    keys = {key: place for place, key in enumerate(dict.fromkeys(key for part in parts for key in part))}
    total = np.zeros((len(parts), len(keys)))
    for at, part in enumerate(parts):
        for key, nodes in part.items():
            total[at, keys[key]] = edit.dur[nodes].sum()
    ranks = Counter(group)
    size = np.array([ranks[key[0]] for key in keys], dtype=np.int64)
    common = ((total > 0).sum(axis=0) == size) & (size > 1)
    if not common.any():
        raise NotApplicable("no MoE layer whose routed experts several ranks of the run computed together")
    mean = total.sum(axis=0) / np.maximum(size, 1)
    for at, part in enumerate(parts):
        for key, nodes in part.items():
            if common[keys[key]]:
                factor = mean[keys[key]] / total[at, keys[key]]
                edit.dur[nodes] = np.rint(edit.dur[nodes] * factor).astype(np.int64)
    uneven = total.max(axis=0)[common].sum() / mean[common].sum()
    return (
        f"measured: routed experts of the busiest rank take {uneven:.2f} times the mean; messages stay as "
        "uneven as they are"
    )


def _together(scene: ScenarioContext) -> list[int]:
    """The group of each rank: ranks that exchange tokens in their MoE layers are one group."""
    run, found = scene.recorded.graph.run, scene.recorded.collectives
    place = {trace.meta.rank: at for at, trace in enumerate(run.traces)}
    group = list(range(len(run.traces)))
    for instance in found.matched:
        there = [(place[member.rank], member.record.kernel) for member in instance.participants]
        visits = [run.traces[at].once(regions).layer_pass[found.work[at][kernel]] for at, kernel in there]
        if min(visits) >= 0:
            joined = {group[at] for at, _ in there}
            if len(joined) < 2:
                continue
            group = [min(joined) if one in joined else one for one in group]
    return group


def _experts(scene: ScenarioContext, at: int) -> dict[tuple[int, int], Int]:
    """(pass through an MoE layer, phase) of a rank to the nodes of its routed experts' work."""
    graph = scene.recorded.graph
    found = graph.run.traces[at].once(regions)
    mine = graph.of_rank[at]
    mine = mine[graph.kind[mine] == WORK]
    work = graph.work[mine]
    inside = (found.layer_pass[work] >= 0) & (found.stage[work] == EXPERTS)
    mine, work = mine[inside], work[inside]
    pairs, group = np.unique(
        np.stack([found.layer_pass[work], found.phase[work]], axis=1), axis=0, return_inverse=True
    )
    group = group.ravel()
    rows = rows_by_code(group)
    return {(int(visit), int(phase)): mine[rows[place]] for place, (visit, phase) in enumerate(pairs)}

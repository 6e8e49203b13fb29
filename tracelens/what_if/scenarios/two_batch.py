"""Two-batch overlap: one half of a prefill communicates while the other one computes."""

from __future__ import annotations

import numpy as np

from tracelens.trace import WORK_KINDS, rows_by_code
from tracelens.what_if.graph import HOST, MEET, WORK, Edit
from tracelens.what_if.scenario import NotApplicable, ScenarioContext, efficiency, scenario
from tracelens.what_if.scenarios.ticks import ticks


@scenario("two_batch_overlap", argument="=EFFICIENCY")
def two_batch_overlap(scene: ScenarioContext, edit: Edit, argument: str) -> str:
    """Prefill steps run as two batches, one of which computes while the other one communicates."""
    share = efficiency(argument, f"two_batch_overlap={argument}") if argument else 1.0
    graph, found = scene.recorded.graph, ticks(scene)
    chosen = [
        place
        for place, step in enumerate(found.steps)
        if step.phases == {"prefill"} and not any(one.step.two_batches for one in step.rank_steps)
    ]
    if not chosen:
        raise NotApplicable("no step in which all ranks prefill, and none of them as two batches")
    split = np.isin(found.of, chosen)
    if not (split & (graph.kind == MEET)).any():
        raise NotApplicable("no collective that several ranks recorded in the steps that prefill")
    computes = _computes(scene)
    for trace, nodes in zip(graph.run.traces, graph.of_rank, strict=True):
        mine = nodes[split[nodes] & computes[nodes]]
        kernels = trace.work.dur[trace.work.is_kernel & (trace.work.dur > 0)]
        edit.dur[mine] += int(kernels.min()) if len(kernels) else 0
    launched = (graph.edge == HOST) & split[graph.src] & split[graph.dst]
    edit.lag[launched] *= 2
    moved, hidden = 0.0, 0.0
    for nodes in rows_by_code(np.where(split, found.of, -1)).values():
        if not split[nodes[0]]:
            continue
        meetings, computing = nodes[graph.kind[nodes] == MEET], nodes[computes[nodes]]
        transfer = float(edit.dur[meetings].sum())
        computed = [
            float(edit.dur[computing[rows]].sum()) for rows in rows_by_code(graph.rank[computing]).values()
        ]
        behind = share * min(transfer, *computed) if computed else 0.0
        edit.dur[meetings] = np.rint(edit.dur[meetings] * (1 - behind / max(transfer, 1))).astype(np.int64)
        moved, hidden = moved + transfer, hidden + behind
    how = "all that computation has room for, an upper bound" if not argument else f"{share:g} of that"
    return (
        f"in {len(chosen)} prefill steps {hidden / 1e6:,.2f} of {moved / 1e6:,.2f} ms of transfers hide "
        f"behind the other half's computation ({how}), waiting for late ranks does not; each half is "
        "launched for itself, in twice the host's time, and each kernel takes the shortest one's time more"
    )


def _computes(scene: ScenarioContext) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Nodes of work that is no communication."""
    graph = scene.recorded.graph
    found = np.zeros(len(graph), dtype=bool)
    for at, trace in enumerate(graph.run.traces):
        mine = graph.of_rank[at]
        mine = mine[graph.kind[mine] == WORK]
        found[mine] = trace.work.kind[graph.work[mine]] != WORK_KINDS.index("comm")
    return found

"""Two-batch overlap: one half of a prefill communicates while the other one computes."""

from __future__ import annotations

import numpy as np

from tracelens.trace import rows_by_code
from tracelens.what_if.graph import Edge, Edit, Node
from tracelens.what_if.scenario import NotApplicable, ScenarioContext, efficiency, scenario
from tracelens.what_if.scenarios.serving.serving_steps import serving_rank, serving_steps


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

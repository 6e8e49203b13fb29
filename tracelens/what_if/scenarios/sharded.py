"""Sharded data parallelism: what happens to the parameters that a pass has gathered."""

from __future__ import annotations

import numpy as np

from tracelens.analysis.comm import Regathers
from tracelens.analysis.comm import regathers as regathers_of
from tracelens.devices import Device
from tracelens.trace import Trace
from tracelens.units import amount, duration
from tracelens.what_if.graph import Edit, Node
from tracelens.what_if.scenario import NotApplicable, ScenarioContext, scenario
from tracelens.what_if.scenarios.changes import drop_work, marked, meetings_of


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
    calls = np.zeros(len(graph), dtype=bool)
    for rank, part in enumerate(by_rank):
        points = graph.nodes(rank, Node.POINT, Node.WAITED)
        calls[points] = np.isin(graph.event[points], part.event)
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

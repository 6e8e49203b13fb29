"""MoE layers without waiting for the GPU, in the stages of sync-free MoE."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracelens.analysis.moe import EXPERTS, PERMUTATION, ROUTER, STAGES, blocking
from tracelens.arrays import Int
from tracelens.devices import Device
from tracelens.errors import TracelensError
from tracelens.trace import Trace
from tracelens.what_if.graph import Edit, Node
from tracelens.what_if.scenario import NotApplicable, ScenarioContext, scenario
from tracelens.what_if.scenarios.changes import unblock

_FREE = {
    "1": (ROUTER, PERMUTATION),
    "2": (ROUTER, PERMUTATION, EXPERTS),
    "3": tuple(range(len(STAGES))),
}
"""The parts of a layer that do not wait, by stage; the rest of 2 waits for the sizes of messages only."""


class LayerWaits(NamedTuple):
    """Calls in MoE layers that wait for the GPU.

    Attributes:
        event: row of each call.
        stage: code into STAGES.
    """

    event: Int
    stage: Int


def layer_waits(trace: Trace, device: Device | None) -> LayerWaits:
    """The calls of a rank that wait for the GPU in MoE layers."""
    calls = trace.once(blocking)
    inside = calls.layer_pass >= 0
    return LayerWaits(calls.event[inside], calls.stage[inside])


@scenario("sync_free", argument="=1, 2 or 3", usual=("", "1", "2"), reads=(layer_waits,))
def sync_free(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """MoE layers do not wait for the GPU: 1 in router and permutation, 2 in experts too, 3 anywhere.

    Assumes:
        GPU work and launches stay the same, though sync-free layers pad buffers to the worst case and launch
        more.
    """
    stages = _FREE.get(argument or "3")
    if stages is None:
        raise TracelensError(f"scenario sync_free={argument}: the stages are 1, 2 and 3")
    graph, everywhere = context.gpu_graph(), stages == _FREE["3"]
    free = np.zeros(len(graph), dtype=bool)
    for rank, waits in enumerate(context.read(layer_waits)):
        nodes = graph.nodes(rank, Node.WAITED)
        free[nodes] = np.isin(graph.event[nodes], waits.event[everywhere | np.isin(waits.stage, stages)])
    count = unblock(graph, edit, free)
    if not count:
        where = "an MoE layer" if everywhere else " or ".join(STAGES[stage] for stage in stages)
        raise NotApplicable(f"no call in {where} waits for the GPU")
    return (
        f"{count:,} calls in MoE layers return at once; GPU work and launches stay the same, though "
        "sync-free layers pad buffers to the worst case and launch more"
    )

"""Chains of kernels become one fused kernel each: the loss, routers, permutations."""

from __future__ import annotations

from collections.abc import Callable

from tracelens.analysis.fusable import Chains, loss_chains, permutation_chains, router_chains
from tracelens.devices import Device
from tracelens.trace import Trace
from tracelens.units import duration
from tracelens.what_if.graph import Edit
from tracelens.what_if.scenario import NotApplicable, ScenarioContext, scenario
from tracelens.what_if.scenarios.changes import fuse


@scenario("fused_loss", reads=(loss_chains,))
def fused_loss(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """The cross-entropy loss over the vocabulary runs as one kernel forward and one backward.

    Assumes:
        The fused kernels run at memory bandwidth: logits read twice, their gradient written once.
    """
    return _fused(
        context,
        edit,
        loss_chains,
        "no cross-entropy loss over a vocabulary that runs kernel by kernel",
        "memory bandwidth (logits read twice, their gradient written once)",
    )


@scenario("fused_router", reads=(router_chains,))
def fused_router(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """Routers of MoE layers run as one kernel in addition to their GEMM.

    Assumes:
        The fused kernel takes the time of the longest kernel that it replaces.
    """
    return _fused(
        context,
        edit,
        router_chains,
        "no MoE layer whose router runs kernel by kernel",
        "the time of the longest kernel that it replaces",
    )


@scenario("fused_permute", reads=(permutation_chains,))
def fused_permute(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """Permutations of tokens run as one kernel each.

    Assumes:
        The fused kernels run at memory bandwidth: tokens read once and written once per expert, and back.
    """
    return _fused(
        context,
        edit,
        permutation_chains,
        "no MoE layer whose permutation runs kernel by kernel",
        "memory bandwidth (tokens read once and written once per expert, and back)",
    )


def _fused(
    context: ScenarioContext,
    edit: Edit,
    find: Callable[[Trace, Device | None], Chains],
    reason: str,
    limit: str,
) -> str:
    graph = context.gpu_graph()
    by_rank = context.read(find)
    if not any(len(chains.rows) for chains in by_rank):
        raise NotApplicable(reason)
    count, launches, before_ns, after_ns = fuse(graph, edit, by_rank)
    return (
        f"{count:,} chains of kernels become one kernel each, at {limit}: {duration(after_ns)} instead of "
        f"{duration(before_ns)} over the recording; {launches:,} launches and the host time before them "
        "disappear; blocking calls in between stay"
    )

"""Kernels of another size: GEMMs in another element type, or steps with more or fewer tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tracelens.analysis.comm import SEND_RECV
from tracelens.analysis.roofline import least_ns
from tracelens.arrays import Bool, Float, Int, lookup
from tracelens.costs import OpCost
from tracelens.devices import Device
from tracelens.dtypes import BITS
from tracelens.errors import TracelensError
from tracelens.trace import WORK_KINDS, Trace, matching
from tracelens.units import duration
from tracelens.what_if.graph import Edit, Node
from tracelens.what_if.scenario import NotApplicable, ScenarioContext, number, scenario, work_costs

_GEMM_DIMS = {"M", "N", "K"}
_SUM_BITS = 16
"""Results and sums of narrower GEMMs are written in 16 bits."""

_OPTIMIZER = re.compile(r"multi_tensor|foreach|adam|lamb|sgd|clip_grad", re.IGNORECASE)
_OF_PARAMETERS = re.compile(r"data|dp|embedding|optim|default", re.IGNORECASE)


class Costs(NamedTuple):
    """What the GPU work of one rank has to do.

    Attributes:
        cost: index into `costs` of each piece of work, -1 for none.
        costs: of the calls.
        backward: which pieces of work are backward.
        parameters: which are of the size of the parameters, not of the batch.
        communication: which are communication.
        shortest_ns: of its kernels.
        device: that it ran on, None if unknown.
    """

    cost: Int
    costs: Sequence[OpCost]
    backward: Bool
    parameters: Bool
    communication: Bool
    shortest_ns: int
    device: Device | None


def costs(trace: Trace, device: Device | None) -> Costs:
    """What the GPU work of a rank has to do."""
    work, counted = trace.work, trace.once(work_costs)
    kernels = work.dur[work.is_kernel & (work.dur > 0)]
    optimizer = matching(trace.arrays.names, _OPTIMIZER)
    parameters = matching(work.names, _OPTIMIZER)[work.name]
    parameters |= lookup(optimizer, lookup(trace.arrays.name, work.op, -1), False)
    return Costs(
        counted.item,
        [item.cost for item in counted.items],
        work.forward >= 0,
        parameters,
        work.kind == WORK_KINDS.index("comm"),
        int(kernels.min()) if len(kernels) else 0,
        device,
    )


@scenario("dtype", argument="=TYPE", usual=(), reads=(costs,), in_reports=False)
def dtype(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """GEMMs multiply in TYPE (fp8, bf16, fp32, ...), at the same share of what the device allows.

    Assumes:
        Each GEMM keeps its share of the roofline. Results stay at least 16 bits wide. Casts, scales, other
        kernels and messages stay the same.
    """
    target = "fp8_e4m3" if argument == "fp8" and "fp8" not in BITS else argument
    if target not in BITS:
        raise TracelensError(f"scenario dtype={argument}: unknown type (known: {', '.join(BITS)})")
    graph, changed, before_ns, after_ns = context.gpu_graph(), 0, 0.0, 0.0
    for rank, part in enumerate(context.read(costs)):
        ratio = np.ones(len(part.costs) + 1)
        for row, cost in enumerate(part.costs):
            if cost.engine == "matrix" and cost.flops and cost.dtype != target and cost.dtype in BITS:
                ratio[row] = _ratio(cost, _of_type(cost, target), _with_type(part.device, rank, target))
        nodes = graph.nodes(rank, Node.WORK)
        factor = ratio[part.cost[graph.work[nodes]]]
        nodes, factor = nodes[factor != 1], factor[factor != 1]
        before_ns += float(edit.dur[nodes].sum())
        edit.set_dur(nodes, edit.dur[nodes] * factor)
        after_ns += float(edit.dur[nodes].sum())
        changed += len(nodes)
    if not changed:
        raise NotApplicable(f"no GEMM of another type than {argument} with recorded shapes")
    return (
        f"{changed:,} GEMMs and attentions read operands in {argument}: {duration(after_ns)} instead of "
        f"{duration(before_ns)} over all ranks; each keeps its share of the roofline; results stay at least "
        "16 bits wide; casts, scales, other kernels and messages stay the same"
    )


def _with_type(device: Device | None, rank: int, element_type: str) -> Device:
    """The device of a rank, if it multiplies in this type."""
    if device is None:
        raise NotApplicable(f"trace {rank}: unknown device; give --device")
    if not device.peak("matrix", element_type):
        raise NotApplicable(f"{device.title} has no matrix units for {element_type}, by its device file")
    return device


def _of_type(cost: OpCost, element_type: str) -> OpCost:
    """The same call in another element type."""
    old, new = BITS[cost.dtype], BITS[element_type]
    written = max(new, _SUM_BITS) / max(old, _SUM_BITS)
    return cost._replace(
        dtype=element_type,
        read_bytes=round(cost.read_bytes * new / old),
        write_bytes=round(cost.write_bytes * written),
    )


def _ratio(before: OpCost, after: OpCost, device: Device) -> float:
    """Least time of one call / that of another; 1 where one of them is unknown."""
    least = [least_ns(cost, device) for cost in (before, after)]
    return least[1] / least[0] if min(least) > 0 else 1.0


@scenario("batch", argument="=FACTOR", usual=(), reads=(costs,), in_reports=False)
def batch(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """FACTOR times as many tokens in each micro-batch.

    Assumes:
        Work with a cost model scales with its roofline time, in which weights keep their size, other kernels
        by FACTOR. Messages of tokens scale, latency included. Optimizer, gradient messages and host stay the
        same.
    """
    factor, graph = number(argument, f"batch={argument}"), context.gpu_graph()
    modelled_ns, total_ns = 0.0, 0.0
    for rank, part in enumerate(context.read(costs)):
        if part.device is None:
            raise NotApplicable(f"trace {rank}: unknown device; give --device")
        tokens = _token_counts(part)
        ratio, of_backward = np.full((2, len(part.costs) + 1), factor)
        for row, cost in enumerate(part.costs):
            ratio[row] = _ratio(cost, _of_batch(cost, factor, frozenset()), part.device)
            of_backward[row] = _ratio(cost, _of_batch(cost, factor, tokens), part.device)
        nodes = graph.nodes(rank, Node.WORK)
        work = graph.work[nodes]
        scale = np.where(part.backward[work], of_backward[part.cost[work]], ratio[part.cost[work]])
        scale[part.parameters[work] | part.communication[work]] = 1.0
        own_ns = edit.dur[nodes].astype(float)
        fixed: Float = np.minimum(own_ns, part.shortest_ns)
        edit.set_dur(nodes, fixed + (own_ns - fixed) * scale)
        modelled_ns += float(own_ns[(part.cost[work] >= 0) & ~part.communication[work]].sum())
        total_ns += float(own_ns[~part.communication[work]].sum())
    messages = _scale_messages(context, edit, factor)
    return (
        f"{modelled_ns / max(total_ns, 1):.0%} of the GPU time has a cost model and scales with its "
        f"roofline time, in which weights keep their size; other kernels scale by {factor:g}; each keeps the "
        f"time of the shortest kernel; transfers of {messages:,} messages of tokens scale, latency included; "
        "the optimizer, gradient messages and the host stay the same"
    )


def _token_counts(part: Costs) -> frozenset[int]:
    """The first sizes of GEMMs of the forward pass: numbers of tokens."""
    rows = np.unique(part.cost[(part.cost >= 0) & ~part.backward]).tolist()
    dims = [dict(part.costs[row].dims) for row in rows]
    return frozenset(sizes["M"] for sizes in dims if sizes.keys() >= _GEMM_DIMS)


def _of_batch(cost: OpCost, factor: float, tokens: frozenset[int]) -> OpCost:
    """The same call with more tokens.

    Of a GEMM's three matrices two have a row per token; the third is a weight, or its gradient, which is a
    sum over as many as one of `tokens`.
    """
    grown = cost._replace(
        flops=round(cost.flops * factor),
        read_bytes=round(cost.read_bytes * factor),
        write_bytes=round(cost.write_bytes * factor),
    )
    dims = dict(cost.dims)
    if cost.engine != "matrix" or not dims.keys() >= _GEMM_DIMS or dims.get("B", 1) > 1:
        return grown
    if dims["K"] in tokens and dims["M"] not in tokens:
        return grown._replace(write_bytes=cost.write_bytes)
    weight = min(dims["K"] * dims["N"] * BITS.get(cost.dtype, 0) // 8, cost.read_bytes)
    return grown._replace(read_bytes=weight + round((cost.read_bytes - weight) * factor))


def _scale_messages(context: ScenarioContext, edit: Edit, factor: float) -> int:
    """Scale transfers of tokens and activations; returns their number."""
    meetings, collectives = context.meetings()
    tokens = np.array(
        [
            collective.collective == SEND_RECV
            or collective.collective.startswith(("all_to_all", "alltoall"))
            or not _OF_PARAMETERS.search(collective.participants[0].record.description or "default")
            for collective in collectives
        ],
        dtype=bool,
    )
    edit.set_dur(meetings[tokens], edit.dur[meetings[tokens]] * factor)
    return int(tokens.sum())

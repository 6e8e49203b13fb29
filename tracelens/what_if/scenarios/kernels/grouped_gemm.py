"""Experts computed in a loop become grouped GEMMs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracelens.analysis.moe import BACKWARD, EXPERTS, LayerPass, regions
from tracelens.analysis.roofline import gemm_rate
from tracelens.arrays import Float, Int
from tracelens.devices import Device
from tracelens.trace import Trace
from tracelens.what_if.graph import Edge, Edit, Node
from tracelens.what_if.scenario import NotApplicable, ScenarioContext, efficiency, scenario, work_costs
from tracelens.what_if.scenarios.kernels.loops import Loop, iterations, loops


class ExpertLoops(NamedTuple):
    """The loops over experts of one rank.

    Attributes:
        loops: passes through them.
        dur: of each activity in the trace's `work`, ns; none without loops.
        rate: FLOP/s of the run's large GEMMs outside of them, else what the device achieves; 0 if unknown.
        dtype: of the experts' GEMMs.
    """

    loops: list[Loop]
    dur: Int
    rate: float
    dtype: str


def expert_loops(trace: Trace, device: Device | None) -> ExpertLoops:
    """The loops over experts of one rank."""
    if not any(map(iterations, trace.once(regions).passes)):
        return ExpertLoops([], np.empty(0, dtype=np.int64), 0.0, "")
    layers, costs = trace.once(regions), trace.once(work_costs)
    items = np.unique(costs.item[(layers.stage == EXPERTS) & (costs.item >= 0)]).tolist()
    known = (costs.items[item].cost for item in items)
    dtype = next((cost.dtype for cost in known if cost.engine == "matrix"), "bf16")
    rate = gemm_rate(trace, device, layers.stage == EXPERTS)
    return ExpertLoops(loops(trace, _bytes_per_s(device)), trace.work.dur, rate, dtype)


@scenario("grouped_gemm", argument="=EFFICIENCY", usual=("",), reads=(expert_loops,))
def grouped_gemm(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """Loops over experts become one grouped GEMM per weight, at EFFICIENCY of the achievable rate.

    Assumes:
        Without EFFICIENCY, GEMMs run at the rate of the large ones in the trace. Host reads of sizes are
        gone; other work keeps its time less the fixed cost of the removed calls.
    """
    share = efficiency(argument, f"grouped_gemm={argument}") if argument else 0.0
    graph, of_rank = context.gpu_graph(), context.read(expert_loops)
    if not any(rank.loops for rank in of_rank):
        raise NotApplicable("no loop over experts: no 4 GEMMs of one weight size in an MoE layer")
    rates = []
    for index, rank in enumerate(of_rank):
        if not rank.loops:
            continue
        device = graph.ranks[index].device
        rates.append(_rate(rank, device, share))
        node, dur = _node_of_work(context, index), rank.dur.astype(float)
        for loop in rank.loops:
            gemms_ns = grouped_gemm_ns(loop.layer_pass, loop.phase, rates[-1], _bytes_per_s(device))
            own_ns = dur[loop.gemms]
            _scale(edit, node[loop.gemms], own_ns, gemms_ns * own_ns / max(own_ns.sum(), 1))
            _scale(edit, node[loop.kept], dur[loop.kept], loop.kept_ns)
    rank_loops = [rank.loops for rank in of_rank]
    launches, passes = _remove(context, edit, rank_loops), sum(map(len, rank_loops))
    source = f"{share:g} of what the device achieves" if share else "the rate of the run's own large GEMMs"
    return (
        f"{passes:,} loops become grouped GEMMs over the rows of all experts, which removes {launches:,} "
        f"launches; the GEMMs run at {np.mean(rates) / 1e12:,.0f} TFLOP/s ({source}) or at memory bandwidth; "
        "other work keeps its time less the fixed cost of the removed calls; host reads of sizes and the "
        "expert-by-expert assembly of gradients are gone"
    )


def _bytes_per_s(device: Device | None) -> float:
    return device.hbm_bytes_per_s if device else 0.0


def _rate(rank: ExpertLoops, device: Device | None, share: float) -> float:
    """FLOP/s of a grouped GEMM.

    The rate of a run's own large GEMMs reflects its shapes, power and clocks; it ignores tiles cut off at the
    borders of small groups.
    """
    if not share:
        if not rank.rate:
            raise NotApplicable("no large GEMM in the trace, and its device is unknown: give --device")
        return rank.rate
    peak = (device.max_achievable(rank.dtype) or device.peak("matrix", rank.dtype)) if device else None
    if not peak:
        raise NotApplicable(f"the device's peak for {rank.dtype} GEMMs is unknown: give --device")
    return share * peak


def _node_of_work(context: ScenarioContext, rank: int) -> Int:
    """The node of each of a rank's activities, -1 for none."""
    graph = context.graph
    nodes = graph.nodes(rank, Node.WORK)
    node_of = np.full(len(graph.ranks[rank].is_comm), -1, dtype=np.int64)
    node_of[graph.work[nodes]] = nodes
    return node_of


def _scale(edit: Edit, nodes: Int, before_ns: Float, after_ns: Float) -> None:
    """Scale the current durations, which other scenarios may have changed, by after / before."""
    edit.set_dur(nodes, edit.dur[nodes] * (after_ns / np.maximum(before_ns, 1)))


def grouped_gemm_ns(layer_pass: LayerPass, phase: int, rate: float, bytes_per_s: float) -> float:
    """Ns of the grouped GEMMs of one pass: per weight the longer of FLOPs / rate and bytes / bandwidth.

    T rows of all experts, E experts: 2·T·K·N FLOPs; rows read, weights of all experts read, result written.
    The backward pass has two GEMMs of that size for each: for the rows' gradients and for the weights'.
    """
    sizes: dict[tuple[int, int], list[int]] = {}
    for gemm in layer_pass.gemms:
        sizes.setdefault((gemm.depth, gemm.columns), []).append(gemm.rows)
    experts = iterations(layer_pass)
    total = 0.0
    for (depth, columns), rows in sizes.items():
        # Gate and up projections of one size are separate GEMMs.
        weights = len(rows) / experts
        all_rows = sum(rows)
        moved = (all_rows * (depth + columns) + weights * experts * depth * columns) * layer_pass.itemsize
        memory_s = moved / bytes_per_s if bytes_per_s else 0.0
        total += max(2 * all_rows * depth * columns / rate, memory_s)
    return total * 1e9 * (2 if phase == BACKWARD else 1)


def _remove(context: ScenarioContext, edit: Edit, rank_loops: list[list[Loop]]) -> int:
    """Take removed work and its calls out of the graph; returns the number of removed launches."""
    graph = context.graph
    work, waits = (np.zeros(len(graph), dtype=bool) for _ in range(2))
    for rank, own_loops in enumerate(rank_loops):
        node = _node_of_work(context, rank)
        for loop in own_loops:
            work[node[loop.removed]] = True
        calls = [call for loop in own_loops for call in loop.blocking_calls.tolist()]
        points = graph.nodes(rank, Node.POINT, Node.WAITED)
        waits[points] = np.isin(graph.event[points], calls)
    launch = graph.edge == Edge.LAUNCH
    # A call goes when all that it launched goes.
    busy, idle = np.zeros(len(graph), dtype=bool), np.zeros(len(graph), dtype=bool)
    idle[graph.src[launch & work[graph.dst]]] = True
    busy[graph.src[launch & ~work[graph.dst]]] = True
    point = (idle | waits) & ~busy
    edit.dur[work] = 0
    edit.delay[work | point] = 0
    edit.lag[(graph.edge == Edge.HOST) & point[graph.dst]] = 0
    edit.lag[(graph.edge == Edge.STREAM) & work[graph.dst]] = 0
    edit.kept &= ~((graph.edge == Edge.SYNC) & waits[graph.dst])
    return int((idle & ~busy).sum())

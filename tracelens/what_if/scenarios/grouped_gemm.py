"""Experts computed in a loop become grouped GEMMs."""

from __future__ import annotations

import numpy as np

from tracelens.analysis.moe import BACKWARD, EXPERTS, LayerPass, regions
from tracelens.analysis.roofline import gemm_rate
from tracelens.arrays import Float, Int
from tracelens.devices import Device
from tracelens.trace import Trace
from tracelens.what_if.graph import HOST, LAUNCH, POINT, STREAM, SYNC, WAITED, WORK, Edit, whole_ns
from tracelens.what_if.scenario import NotApplicable, ScenarioContext, efficiency, scenario
from tracelens.what_if.scenarios.devices import counted, device_of
from tracelens.what_if.scenarios.loops import Loop, loops, turns


@scenario("grouped_gemm", argument="=EFFICIENCY", usual=("",))
def grouped_gemm(scene: ScenarioContext, edit: Edit, argument: str) -> str:
    """Experts in a loop become one grouped GEMM a weight, at a share of what the device achieves."""
    share = efficiency(argument, f"grouped_gemm={argument}") if argument else 0.0
    graph = scene.recorded.graph
    if all(trace.meta.cpu_only for trace in graph.run.traces):
        raise NotApplicable("the host does all the work of this run, and no GPU's figures hold for it")
    if not any(turns(layer_pass) for trace in graph.run.traces for layer_pass in trace.once(regions).passes):
        raise NotApplicable("no loop over experts: no 4 products with weights of one size in an MoE layer")
    found: list[list[Loop]] = []
    rates = []
    for at, trace in enumerate(graph.run.traces):
        device = device_of(scene, trace)
        rate = _rate(trace, device, share)
        found.append(loops(trace, device.hbm_bytes_per_s if device else 0.0))
        node, dur = _nodes(scene, at), trace.work.dur.astype(float)
        for one in found[-1]:
            _products(edit, node, one, dur, rate, device)
        rates.append(rate)
    launches, passes = _remove(scene, edit, found), sum(map(len, found))
    how = f"{share:g} of what the device achieves" if share else "the rate of the run's own large products"
    return (
        f"{passes:,} loops become one turn over the rows of all experts, {launches:,} launches go; their "
        f"products run at {np.mean(rates) / 1e12:,.0f} TFLOP/s ({how}) or at the memory's bandwidth, other "
        "work takes what it took less the fixed cost of the calls that go, and reads of sizes and gradients "
        "put together expert by expert vanish"
    )


def _rate(trace: Trace, device: Device | None, share: float) -> float:
    """FLOP/s of a grouped product.

    What a run's own large products reach is what its shapes, power and clocks allow; it leaves out what
    tiles cut off at the borders of small groups.
    """
    if not share:
        found = gemm_rate(trace, device, trace.once(regions).stage == EXPERTS)
        if not found:
            raise NotApplicable("no large product in the trace, and its device is not known: give --device")
        return found
    dtype = _dtype(trace)
    peak = (device.max_achievable(dtype) or device.peak("matrix", dtype)) if device else None
    if not peak:
        raise NotApplicable(f"the device's rate for {dtype} products is not known: give --device")
    return share * peak


def _dtype(trace: Trace) -> str:
    """Element type of the experts' products."""
    found, costs = trace.once(regions), trace.once(counted)
    items = costs.item[(found.stage == EXPERTS) & (costs.item >= 0)]
    known = [costs.items[item].cost for item in np.unique(items).tolist()]
    return next((cost.dtype for cost in known if cost.engine == "matrix"), "bf16")


def _nodes(scene: ScenarioContext, at: int) -> Int:
    """The node of each piece of a rank's work, -1 for none."""
    graph = scene.recorded.graph
    mine = graph.of_rank[at]
    mine = mine[graph.kind[mine] == WORK]
    found = np.full(len(graph.run.traces[at].work.event), -1, dtype=np.int64)
    found[graph.work[mine]] = mine
    return found


def _products(edit: Edit, node: Int, one: Loop, dur: Float, rate: float, device: Device | None) -> None:
    """Durations of the work that stays, in the proportion in which other scenarios changed it."""
    own = dur[one.products]
    least = product_ns(one.layer_pass, one.phase, rate, device.hbm_bytes_per_s if device else 0.0)
    for rows, took, now in (
        (one.products, own, least * own / max(own.sum(), 1)),
        (one.stays, dur[one.stays], one.ns),
    ):
        factor = now / np.maximum(took, 1)
        was = edit.dur[node[rows]]
        edit.dur[node[rows]] = whole_ns(was * factor, was)


def product_ns(layer_pass: LayerPass, phase: int, rate: float, bytes_per_s: float) -> float:
    """Ns of the grouped products of one pass: per weight the longer of FLOPs / rate and bytes / bandwidth.

    T rows of all experts, E experts: 2·T·K·N FLOPs; rows read, weights of all experts read, result written.
    The backward pass has two products of that size for each: for the rows' gradients and for the weights'.
    """
    sizes: dict[tuple[int, int], list[int]] = {}
    for one in layer_pass.gemms:
        sizes.setdefault((one.depth, one.columns), []).append(one.rows)
    count = turns(layer_pass)
    total = 0.0
    for (depth, columns), rows in sizes.items():
        # Gate and up projections of one size are as many products.
        weights = len(rows) / count
        whole = sum(rows)
        moved = (whole * (depth + columns) + weights * count * depth * columns) * layer_pass.itemsize
        memory = moved / bytes_per_s if bytes_per_s else 0.0
        total += max(2 * whole * depth * columns / rate, memory)
    return total * 1e9 * (2 if phase == BACKWARD else 1)


def _remove(scene: ScenarioContext, edit: Edit, found: list[list[Loop]]) -> int:
    """Take work and calls of each rank's loops out of the graph; how many launches go."""
    graph = scene.recorded.graph
    work, waits = (np.zeros(len(graph), dtype=bool) for _ in range(2))
    for at, (trace, nodes) in enumerate(zip(graph.run.traces, graph.of_rank, strict=True)):
        node, calls = _nodes(scene, at), np.zeros(len(trace.arrays.start), dtype=bool)
        for one in found[at]:
            work[node[one.gone]] = True
            calls[one.calls] = True
        points = nodes[np.isin(graph.kind[nodes], (POINT, WAITED)) & (graph.event[nodes] >= 0)]
        waits[points] = calls[graph.event[points]]
    launch = graph.edge == LAUNCH
    # A call goes when all that it launched goes.
    busy, idle = np.zeros(len(graph), dtype=bool), np.zeros(len(graph), dtype=bool)
    idle[graph.src[launch & work[graph.dst]]] = True
    busy[graph.src[launch & ~work[graph.dst]]] = True
    point = (idle & ~busy) | (waits & ~busy)
    edit.dur[work] = 0
    edit.delay[work | point] = 0
    edit.lag[(graph.edge == HOST) & point[graph.dst]] = 0
    edit.lag[(graph.edge == STREAM) & work[graph.dst]] = 0
    edit.kept &= ~((graph.edge == SYNC) & waits[graph.dst])
    return int((idle & ~busy).sum())

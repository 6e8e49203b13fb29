"""MoE layers: expert loops, imbalance, routers and permutations that are not fused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from tracelens.analysis.fusable import CHAIN, permutation_bytes, permutation_work, router_work
from tracelens.analysis.moe import BACKWARD, EXPERTS, FORWARD, PHASES, LayerPass, regions
from tracelens.analysis.roofline import gemm_rate
from tracelens.arrays import Float, unique
from tracelens.findings.detectors.detector import (
    Detection,
    Detections,
    Outcome,
    Quantity,
    RankContext,
    detector,
    in_steps,
    step_count,
)
from tracelens.findings.thresholds import EVEN, LOOP_GEMMS, SMALL_NS, UNEVEN
from tracelens.table import Result
from tracelens.trace import union
from tracelens.units import milliseconds

_LAUNCH_NS = 5_000
"""What a saving leaves for each kernel that has to be launched still."""


@detector(
    "expert_loop",
    evidence="moe",
    scenario="grouped_gemm",
    title="Expert loop",
    fix="grouped GEMM",
    measures={
        "GEMMs per layer, forward": "mean number of expert GEMMs in a forward pass",
        "passes per step": "forward passes through an MoE layer with a loop",
        "time of the loops per step": "first to last expert work of a pass, forward and backward",
        "gaps between their kernels per step": "part of that time with an idle GPU",
        "rate on the summed rows, forward": "FLOPs of the expert GEMMs / time of the forward loops",
        "largest expert / mean": "rows of the largest expert / mean over the experts",
    },
    threshold=f"{LOOP_GEMMS} expert GEMMs with weights of one size in one pass",
    limits="Needs the shapes of the GEMMs (record_shapes=True).",
)
def expert_loop(context: RankContext) -> Outcome:
    """At least 4 expert GEMMs with weights of one size run one by one in a pass through an MoE layer."""
    layers = context.trace.once(regions)
    if not layers.passes:
        return "no MoE layer"
    loops = np.array(
        [
            not layer_pass.grouped and _of_one_size(layer_pass) >= LOOP_GEMMS and min(layer_pass.rows) >= 0
            for layer_pass in layers.passes
        ],
        dtype=bool,
    )
    if not loops.any():
        grouped = any(layer_pass.grouped for layer_pass in layers.passes)
        if any(not layer_pass.grouped and -1 in layer_pass.rows for layer_pass in layers.passes):
            return "shapes of the expert GEMMs not recorded; use record_shapes=True"
        return "the expert GEMMs are grouped" if grouped else "no loop over experts"
    # From the first to the last work of the experts in each pass with a loop, forward and backward.
    work = context.work
    number, stage, phase = (
        values[context.rows] for values in (layers.layer_pass, layers.stage, layers.phase)
    )
    rows = np.flatnonzero((number >= 0) & (stage == EXPERTS))
    rows = rows[loops[number[rows]]]
    cells, cell_of = np.unique(number[rows] * len(PHASES) + phase[rows], return_inverse=True)
    start, end = np.full(len(cells), np.iinfo(np.int64).max), np.zeros(len(cells), dtype=np.int64)
    np.minimum.at(start, cell_of, work.start[rows])
    np.maximum.at(end, cell_of, work.end[rows])
    forward, loop_ns = cells % len(PHASES) == FORWARD, end - start
    passes = int(forward.sum())
    if not passes:
        return "no loop over experts in the steps"
    # As grouped GEMMs: the GEMMs at the rate of the trace's large ones, twice as many in the backward pass;
    # what lies between them (activation, weighting, moving rows in and out) at the memory's bandwidth: what
    # each one writes is read again, and its input was written before.
    peak_rate = gemm_rate(context.trace, context.device, layers.stage == EXPERTS)
    grouped_ns: Float
    if not peak_rate or context.device is None:
        # Without figures of the device, whatever keeps the GPU busy stays.
        grouped_ns = context.busy.covered(start, end).astype(float)
    else:
        of_cell = [layers.passes[index] for index in (cells // len(PHASES)).tolist()]
        flops = np.array([_flops(layer_pass) for layer_pass in of_cell])
        moved = np.array(
            [
                float(sum(gemm.rows * (gemm.depth + gemm.columns) for gemm in layer_pass.gemms))
                * layer_pass.itemsize
                for layer_pass in of_cell
            ]
        )
        factor = np.where(cells % len(PHASES) == BACKWARD, 2.0, 1.0)
        grouped_ns = factor * (flops / peak_rate + moved / context.device.hbm_bytes_per_s) * 1e9
    saving = np.maximum(loop_ns - grouped_ns, 0)
    looping = [layers.passes[index] for index in (cells // len(PHASES))[forward].tolist()]
    launches = sum(len(layer_pass.gemms) for layer_pass in looping) / passes
    wall = float(loop_ns[forward].sum())
    rate = sum(_flops(layer_pass) for layer_pass in looping) / max(wall, 1) * 1e9
    gaps = loop_ns - context.busy.covered(start, end)
    uneven = np.mean([max(layer_pass.rows) / max(np.mean(layer_pass.rows), 1e-9) for layer_pass in looping])
    layers_looping = len({layer_pass.layer for layer_pass in looping})
    return Detection(
        (
            Quantity("GEMMs per layer, forward", launches, "count"),
            Quantity("passes per step", context.per_step(passes), "count"),
            Quantity("time of the loops per step", context.per_step(float(loop_ns.sum())), "ns"),
            Quantity("gaps between their kernels per step", context.per_step(float(gaps.sum())), "ns"),
            Quantity("rate on the summed rows, forward", rate, "flops/s"),
            Quantity("largest expert / mean", float(uneven), "ratio"),
        ),
        context.per_step(float(saving.sum())),
        union(start, end),
        f"{launches:.0f} sequential expert GEMMs per MoE layer in {layers_looping} layers reach "
        f"{rate / 1e12:,.0f} TFLOP/s in forward (large GEMMs: {peak_rate / 1e12:,.0f}); the loops take "
        f"{milliseconds(context.per_step(wall), 1)}/step forward and "
        f"{milliseconds(context.per_step(float(loop_ns[~forward].sum())), 1)}/step backward, "
        f"{gaps.sum() / max(loop_ns.sum(), 1):.0%} of that in gaps; grouped GEMMs need about "
        f"{milliseconds(context.per_step(float(grouped_ns.sum())), 1)}/step",
        "medium",
    )


def _of_one_size(layer_pass: LayerPass) -> int:
    """Expert GEMMs with weights of the most frequent size."""
    sizes = Counter((gemm.depth, gemm.columns) for gemm in layer_pass.gemms)
    return max(sizes.values(), default=0)


def _flops(layer_pass: LayerPass) -> float:
    """FLOPs of the expert GEMMs in forward."""
    return float(sum(2 * gemm.rows * gemm.depth * gemm.columns for gemm in layer_pass.gemms))


@detector(
    "token_imbalance",
    evidence="moe",
    scenario="balanced",
    title="Tokens are spread unevenly over ranks",
    fix="balancing the experts",
    needs=("collectives", "moe"),
    measures={
        "busiest rank / mean, worst layer": "rows for the busiest rank's experts / mean over ranks",
        "waiting for slower experts per step": "from the end of its own experts to that of the slowest",
    },
    threshold=f"{EVEN:.0%} of the mean on the busiest rank of a layer",
    limits="Needs all ranks of the expert-parallel group.",
)
def token_imbalance(results: Mapping[str, Result]) -> Detections:
    """The experts of one rank take longer than those of the others in its expert-parallel group."""
    moe = results["moe"]
    balance = moe.data["balance"]
    if not len(balance):
        return "no expert-parallel ranks"
    ratio = balance.array("max_mean_ratio")
    worst = int(np.argmax(ratio))
    waits = moe.data["waits"]
    counted = in_steps(waits)
    if not counted.any() or 0 <= float(ratio.max()) < EVEN:
        return f"balanced: the busiest rank has {float(ratio.max()):.0%} of the mean"
    steps = step_count(results)
    rank, start, dur = (waits.array(name)[counted] for name in ("rank", "ts_ns", "dur_ns"))
    detections = {}
    for waiting_rank in unique(rank).tolist():
        of_rank = rank == waiting_rank
        where = union(start[of_rank], start[of_rank] + dur[of_rank])
        lost = float(dur[of_rank].sum()) / steps
        waiting = Quantity("waiting for slower experts per step", lost, "ns")
        finish = f"this rank's experts finish {milliseconds(lost)}/step before the slowest"
        if ratio[worst] < 0:
            evidence = f"{finish}; their row counts are not recorded"
            detections[waiting_rank] = Detection((waiting,), lost, where, evidence, "low")
            continue
        detections[waiting_rank] = Detection(
            (Quantity("busiest rank / mean, worst layer", float(ratio[worst]), "ratio"), waiting),
            lost,
            where,
            f"in MoE layer {balance.array('layer')[worst]} the busiest rank (mostly rank "
            f"{balance.array('worst_rank')[worst]}) computes {balance.array('tokens_max')[worst]:,.0f} rows "
            f"against a mean of {balance.array('tokens_mean')[worst]:,.0f} ({ratio[worst]:.0%}); {finish}",
            "medium",
            fact=f"in MoE layer {balance.array('layer')[worst]} the busiest rank computes {ratio[worst]:.1f} "
            "times the mean number of rows"
            if ratio[worst] >= UNEVEN
            else "",
        )
    return detections


@detector(
    "permute_unfused",
    evidence="moe",
    scenario="fused_permute",
    title="Unfused permutation of tokens",
    fix="fusing the permutation",
    measures={
        "kernels per layer, forward": "mean number in a forward pass",
        "time per step": "time of these kernels",
        "useful bandwidth": "bytes that permuting must move at least / time",
    },
    threshold=f"{CHAIN} kernels per layer in a forward pass, none of them a known fused one",
    limits="Fused kernels are known by name.",
)
def permute_unfused(context: RankContext) -> Outcome:
    """A chain of sorts, scans and index kernels between router and experts, in place of a permute kernel."""
    stage = permutation_work(context)
    if isinstance(stage, str):
        return stage
    least = sum(permutation_bytes(context, cell) for cell in stage.cells.tolist())
    busy = context.during(stage.rows)
    spent = busy.total
    fused_ns = least / context.device.hbm_bytes_per_s * 1e9 if context.device is not None else 0.0
    fused_ns += 2 * _LAUNCH_NS * len(stage.cells)
    speed = least / max(spent, 1) * 1e9
    return Detection(
        (
            Quantity("kernels per layer, forward", stage.kernels, "count"),
            Quantity("time per step", context.per_step(spent), "ns"),
            Quantity("useful bandwidth", speed, "bytes/s"),
        ),
        context.per_step(max(spent - fused_ns, 0)),
        busy,
        f"{stage.kernels:.0f} kernels per layer in forward take {milliseconds(context.per_step(spent))}/step "
        f"at {speed / 1e9:,.0f} GB/s of useful traffic; a fused permutation takes about "
        f"{milliseconds(context.per_step(fused_ns))}/step",
        "medium" if context.device is not None and least else "low",
    )


@detector(
    "router_unfused",
    evidence="moe",
    scenario="fused_router",
    title="Unfused router",
    fix="a fused router",
    measures={
        "kernels per layer, forward": "mean number in a forward pass",
        "time per step": "time of these kernels, with the short gaps before them",
        "share of kernels under 10 µs": "by number",
    },
    threshold=f"{CHAIN} kernels per layer in a forward pass without the GEMM, none of them a known fused one",
    limits="Fused kernels are known by name.",
)
def router_unfused(context: RankContext) -> Outcome:
    """A chain of softmax, topk, scatter, sum and div kernels in the router, in place of one fused kernel."""
    stage = router_work(context)
    if isinstance(stage, str):
        return stage
    # The chain's kernels with the short gaps in front of them.
    work = context.work
    order = np.lexsort((work.start[stage.rows], stage.cell))
    rows, cell = stage.rows[order], stage.cell[order]
    start, end = work.start[rows].copy(), work.end[rows]
    reached = np.concatenate((start[:1], np.maximum.accumulate(end)[:-1]))
    is_same_pass = np.concatenate(([False], cell[1:] == cell[:-1]))
    close = (start - reached < SMALL_NS) & (reached <= start) & is_same_pass
    start[close] = reached[close]
    where = union(start, end)
    small = float((context.work.dur[stage.rows] < SMALL_NS).mean())
    fused_ns = _LAUNCH_NS * len(stage.cells)
    return Detection(
        (
            Quantity("kernels per layer, forward", stage.kernels, "count"),
            Quantity("time per step", context.per_step(where.total), "ns"),
            Quantity("share of kernels under 10 µs", small, "fraction"),
        ),
        context.per_step(max(where.total - fused_ns, 0)),
        where,
        f"{stage.kernels:.0f} kernels per layer in forward in addition to the router GEMM, {small:.0%} "
        f"under {SMALL_NS // 1000} µs, take {milliseconds(context.per_step(where.total))}/step including "
        f"gaps; one fused kernel per pass takes about {milliseconds(context.per_step(fused_ns))}/step",
        "medium",
    )

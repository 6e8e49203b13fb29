"""Unfused routers and permutations of MoE layers."""

from __future__ import annotations

import numpy as np

from tracelens.analysis.fusable import CHAIN, StageWork, permutation_bytes, permutation_work, router_work
from tracelens.arrays import Int
from tracelens.findings.detectors.detector import Detection, Outcome, Quantity, detector
from tracelens.findings.rank_context import RankContext
from tracelens.trace import union
from tracelens.units import milliseconds

_LAUNCH_NS = 5_000
_SMALL_NS = 10_000


@detector(
    "permute_unfused",
    scenario="fused_permute",
    title="Unfused permutation of tokens",
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
    scenario="fused_router",
    title="Unfused router",
    measures={
        "kernels per layer, forward": "mean number in a forward pass",
        "time per step": "time of these kernels, with the short gaps before them",
        "share of kernels under 10 us": "by number",
    },
    threshold=f"{CHAIN} kernels per layer in a forward pass without the GEMM, none of them a known fused one",
    limits="Fused kernels are known by name.",
)
def router_unfused(context: RankContext) -> Outcome:
    """A chain of softmax, topk, scatter, sum and div kernels in the router, in place of one fused kernel."""
    stage = router_work(context)
    if isinstance(stage, str):
        return stage
    where = union(*_extents(context, stage))
    small = float((context.work.dur[stage.rows] < _SMALL_NS).mean())
    fused_ns = _LAUNCH_NS * len(stage.cells)
    return Detection(
        (
            Quantity("kernels per layer, forward", stage.kernels, "count"),
            Quantity("time per step", context.per_step(where.total), "ns"),
            Quantity("share of kernels under 10 us", small, "fraction"),
        ),
        context.per_step(max(where.total - fused_ns, 0)),
        where,
        f"{stage.kernels:.0f} kernels per layer in forward in addition to the router GEMM, {small:.0%} "
        f"under {_SMALL_NS // 1000} us, take {milliseconds(context.per_step(where.total))}/step including "
        f"gaps; one fused kernel per pass takes about {milliseconds(context.per_step(fused_ns))}/step",
        "medium",
    )


def _extents(context: RankContext, stage: StageWork) -> tuple[Int, Int]:
    """Time of the chain's kernels with the short gaps in front of them."""
    work = context.work
    order = np.lexsort((work.start[stage.rows], stage.cell))
    rows, cell = stage.rows[order], stage.cell[order]
    start, end = work.start[rows].copy(), work.end[rows]
    reached = np.concatenate((start[:1], np.maximum.accumulate(end)[:-1]))
    close = (
        (start - reached < _SMALL_NS) & (reached <= start) & np.concatenate(([False], cell[1:] == cell[:-1]))
    )
    start[close] = reached[close]
    return start, end

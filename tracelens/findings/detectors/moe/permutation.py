"""Unfused routers and permutations of MoE layers."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from tracelens.analysis.moe import FORWARD, PERMUTATION, PHASES, ROUTER, regions
from tracelens.arrays import Int
from tracelens.findings.detectors.detector import Detection, Outcome, Quantity, detector
from tracelens.findings.rank_context import RankContext
from tracelens.trace import WORK_KINDS, Union, union
from tracelens.units import milliseconds

_FUSED_PERMUTE = re.compile(r"row_id_map|permute|sort_chunks|moe_?sort|align_block", re.IGNORECASE)
_FUSED_ROUTER = re.compile(
    r"fused\w*(?:rout|topk|score)|topk_?(?:softmax|gating)|rout(?:er|ing)", re.IGNORECASE
)
_CHAIN = 5
"""A fused permutation is a map, a kernel that moves rows and one that moves them back; a fused router is one
kernel beside its GEMM."""
_LAUNCH_NS = 5_000
_SMALL_NS = 10_000


class _Part(NamedTuple):
    """The work of one stage in the steps.

    Attributes:
        rows: positions in the work of the context.
        layer_pass: pass of each.
        phase: of each.
        passes: number of forward passes.
        busy: when it ran.
        kernels: in forward, a pass.
    """

    rows: Int
    layer_pass: Int
    phase: Int
    passes: int
    busy: Union
    kernels: float


def _part(context: RankContext, stage: int) -> _Part:
    layers = context.trace.once(regions)
    layer_pass, stages, phase = (
        values[context.rows] for values in (layers.layer_pass, layers.stage, layers.phase)
    )
    rows = np.flatnonzero((stages == stage) & (context.work.kind != WORK_KINDS.index("comm")))
    forward = phase == FORWARD
    passes = len(np.unique(layer_pass[forward & (layer_pass >= 0)]))
    count = int((context.work.is_kernel[rows] & forward[rows]).sum())
    return _Part(rows, layer_pass[rows], phase[rows], passes, context.during(rows), count / max(passes, 1))


@detector(
    "permute_unfused",
    title="Unfused permutation of tokens",
    remedy="Sort and move tokens with fused kernels: moe_permutation_fusion (Transformer Engine, Primus), "
    "or Triton permute kernels.",
)
def permute_unfused(context: RankContext) -> Outcome:
    """A chain of sorts, scans and index kernels between router and experts, in place of a permute kernel."""
    if not context.trace.once(regions).passes:
        return "no MoE layer"
    part = _part(context, PERMUTATION)
    if not part.passes or part.kernels < _CHAIN:
        return f"{part.kernels:.3g} kernels per layer in the permutation"
    if _names(context, part, _FUSED_PERMUTE):
        return "the permutation is fused"
    least = _least_bytes(context, part)
    spent = part.busy.total
    fused_ns = least / context.device.hbm_bytes_per_s * 1e9 if context.device is not None else 0.0
    fused_ns += 2 * _LAUNCH_NS * len(np.unique(part.layer_pass * len(PHASES) + part.phase))
    speed = least / max(spent, 1) * 1e9
    return Detection(
        (
            Quantity("kernels per layer, forward", part.kernels, "count"),
            Quantity("time per step", context.per_step(spent), "ns"),
            Quantity("rate on the rows that have to move", speed, "bytes/s"),
        ),
        context.per_step(max(spent - fused_ns, 0)),
        part.busy,
        f"{part.kernels:.0f} kernels per layer in forward take {milliseconds(context.per_step(spent))}/step "
        f"at {speed / 1e9:,.0f} GB/s of useful traffic; a fused permutation takes about "
        f"{milliseconds(context.per_step(fused_ns))}/step",
        "medium" if context.device is not None and least else "low",
    )


def _least_bytes(context: RankContext, part: _Part) -> float:
    """Moved at least: tokens read once and written once an expert, and the same back, in each phase."""
    passes = context.trace.once(regions).passes
    in_pass = part.layer_pass >= 0
    cells = np.unique(part.layer_pass[in_pass] * len(PHASES) + part.phase[in_pass]) // len(PHASES)
    total = 0.0
    for layer_pass in (passes[index] for index in cells.tolist()):
        if min(layer_pass.tokens, layer_pass.hidden, layer_pass.top_k) > 0:
            total += 2 * (1 + layer_pass.top_k) * layer_pass.tokens * layer_pass.hidden * layer_pass.itemsize
    return total


@detector(
    "router_unfused",
    title="Unfused router",
    remedy="Route with one kernel: fused_group_topk_routing_with_aux_score (Primus), moe_router_fusion "
    "(Megatron-LM with Transformer Engine), or a topk-softmax kernel in serving.",
)
def router_unfused(context: RankContext) -> Outcome:
    """A chain of softmax, topk, scatter, sum and div kernels in the router, in place of one fused kernel."""
    if not context.trace.once(regions).passes:
        return "no MoE layer"
    part = _part(context, ROUTER)
    gemm = context.work.categories.index("gemm")
    chain = part.rows[context.work.category[part.rows] != gemm]
    forward = part.phase == FORWARD
    count = int((context.work.is_kernel[part.rows] & forward & np.isin(part.rows, chain)).sum())
    kernels = count / max(part.passes, 1)
    if not part.passes or kernels < _CHAIN:
        return f"{kernels:.3g} kernels per layer in the router beside its GEMM"
    if _names(context, part, _FUSED_ROUTER):
        return "the router is fused"
    where = union(*_extents(context, chain, part))
    cells = len(np.unique(part.layer_pass * len(PHASES) + part.phase))
    small = float((context.work.dur[chain] < _SMALL_NS).mean())
    fused_ns = _LAUNCH_NS * cells
    return Detection(
        (
            Quantity("kernels per layer, forward", kernels, "count"),
            Quantity("time per step", context.per_step(where.total), "ns"),
            Quantity("share of kernels under 10 us", small, "fraction"),
        ),
        context.per_step(max(where.total - fused_ns, 0)),
        where,
        f"{kernels:.0f} kernels per layer in forward beside the router GEMM, {small:.0%} under "
        f"{_SMALL_NS // 1000} us, take {milliseconds(context.per_step(where.total))}/step including gaps; "
        f"one fused kernel per pass takes about {milliseconds(context.per_step(fused_ns))}/step",
        "medium",
    )


def _extents(context: RankContext, chain: Int, part: _Part) -> tuple[Int, Int]:
    """Time of the chain's kernels with the short gaps in front of them."""
    work = context.work
    row = np.searchsorted(part.rows, chain)
    order = np.lexsort((work.start[chain], part.layer_pass[row] * len(PHASES) + part.phase[row]))
    cell = (part.layer_pass[row] * len(PHASES) + part.phase[row])[order]
    start, end = work.start[chain][order].copy(), work.end[chain][order]
    reached = np.concatenate((start[:1], np.maximum.accumulate(end)[:-1]))
    close = (
        (start - reached < _SMALL_NS) & (reached <= start) & np.concatenate(([False], cell[1:] == cell[:-1]))
    )
    start[close] = reached[close]
    return start, end


def _names(context: RankContext, part: _Part, grammar: re.Pattern[str]) -> bool:
    """Whether any kernel of the stage has such a name."""
    codes = np.unique(context.work.name[part.rows])
    return any(grammar.search(context.work.names[code]) for code in codes.tolist())

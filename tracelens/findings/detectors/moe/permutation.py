"""Routers and permutations of MoE layers that run as a chain of small kernels."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from tracelens.analysis.moe import FORWARD, PERMUTATION, PHASES, ROUTER, regions
from tracelens.arrays import Int
from tracelens.findings.detectors.detector import Detection, Found, Quantity, detector
from tracelens.findings.rank_context import RankContext
from tracelens.trace import WORK_KINDS, Union, union

_FUSED_PERMUTE = re.compile(r"row_id_map|permute|sort_chunks|moe_?sort|align_block", re.IGNORECASE)
_FUSED_ROUTER = re.compile(
    r"fused\w*(?:rout|topk|score)|topk_?(?:softmax|gating)|rout(?:er|ing)", re.IGNORECASE
)
_CHAIN = 5
"""A fused permutation is a map, a kernel that moves rows and one that moves them back; a fused router is one
kernel beside its matrix product."""
_LAUNCH_NS = 5_000
_SMALL_NS = 10_000


class _Part(NamedTuple):
    """The work of one stage in the steps.

    Attributes:
        rows: positions in the scene's work.
        visit: pass of each.
        phase: of each.
        passes: number of forward passes.
        busy: when it ran.
        kernels: in forward, a pass.
    """

    rows: Int
    visit: Int
    phase: Int
    passes: int
    busy: Union
    kernels: float


def _part(scene: RankContext, stage: int) -> _Part:
    found = scene.trace.once(regions)
    visit, stages, phase = (values[scene.rows] for values in (found.visit, found.stage, found.phase))
    rows = np.flatnonzero((stages == stage) & (scene.work.kind != WORK_KINDS.index("comm")))
    forward = phase == FORWARD
    passes = len(np.unique(visit[forward & (visit >= 0)]))
    count = int((scene.work.is_kernel[rows] & forward[rows]).sum())
    return _Part(rows, visit[rows], phase[rows], passes, scene.during(rows), count / max(passes, 1))


@detector(
    "permute_unfused",
    title="Unfused permutation of tokens",
    remedy="Sort and move tokens with fused kernels: moe_permutation_fusion (Transformer Engine, Primus), "
    "or Triton permute kernels.",
)
def permute_unfused(scene: RankContext) -> Found:
    """A chain of sorts, scans and index kernels between router and experts, in place of a permute kernel."""
    if not scene.trace.once(regions).visits:
        return "no MoE layer"
    part = _part(scene, PERMUTATION)
    if not part.passes or part.kernels < _CHAIN:
        return f"{part.kernels:.3g} kernels a layer in the permutation"
    if _names(scene, part, _FUSED_PERMUTE):
        return "the permutation is fused"
    least = _least_bytes(scene, part)
    spent = part.busy.total
    left = least / scene.device.hbm_bytes_per_s * 1e9 if scene.device is not None else 0.0
    left += 2 * _LAUNCH_NS * len(np.unique(part.visit * len(PHASES) + part.phase))
    speed = least / max(spent, 1) * 1e9
    return Detection(
        (
            Quantity("kernels a layer, forward", part.kernels, "count"),
            Quantity("time, a step", scene.per_step(spent), "ns"),
            Quantity("rate on the rows that have to move", speed, "bytes/s"),
        ),
        scene.per_step(max(spent - left, 0)),
        part.busy,
        f"{part.kernels:.0f} kernels a layer in forward, {scene.per_step(spent) / 1e6:,.2f} ms a step, "
        f"{speed / 1e9:,.0f} GB/s on the rows that have to move; fused it takes about "
        f"{scene.per_step(left) / 1e6:,.2f} ms",
        "medium" if scene.device is not None and least else "low",
    )


def _least_bytes(scene: RankContext, part: _Part) -> float:
    """Moved at least: tokens read once and written once an expert, and the same back, in each phase."""
    visits = scene.trace.once(regions).visits
    cells = np.unique(part.visit * len(PHASES) + part.phase) // len(PHASES)
    total = 0.0
    for visit in (visits[at] for at in cells.tolist()):
        if min(visit.tokens, visit.hidden, visit.chosen) > 0:
            total += 2 * (1 + visit.chosen) * visit.tokens * visit.hidden * visit.itemsize
    return total


@detector(
    "router_unfused",
    title="Unfused router",
    remedy="Route with one kernel: fused_group_topk_routing_with_aux_score (Primus), moe_router_fusion "
    "(Megatron-LM with Transformer Engine), or a topk-softmax kernel in serving.",
)
def router_unfused(scene: RankContext) -> Found:
    """A chain of softmax, topk, scatter, sum and div kernels in the router, in place of one fused kernel."""
    if not scene.trace.once(regions).visits:
        return "no MoE layer"
    part = _part(scene, ROUTER)
    product = scene.work.categories.index("gemm")
    chain = part.rows[scene.work.category[part.rows] != product]
    forward = part.phase == FORWARD
    count = int((scene.work.is_kernel[part.rows] & forward & np.isin(part.rows, chain)).sum())
    kernels = count / max(part.passes, 1)
    if not part.passes or kernels < _CHAIN:
        return f"{kernels:.3g} kernels a layer in the router beside its product"
    if _names(scene, part, _FUSED_ROUTER):
        return "the router is fused"
    where = union(*_extents(scene, chain, part))
    cells = len(np.unique(part.visit * len(PHASES) + part.phase))
    small = float((scene.work.dur[chain] < _SMALL_NS).mean())
    left = _LAUNCH_NS * cells
    return Detection(
        (
            Quantity("kernels a layer, forward", kernels, "count"),
            Quantity("time, a step", scene.per_step(where.total), "ns"),
            Quantity("share of kernels under 10 us", small, "fraction"),
        ),
        scene.per_step(max(where.total - left, 0)),
        where,
        f"{kernels:.0f} kernels a layer in forward beside the router's product, {small:.0%} of them under "
        f"{_SMALL_NS // 1000} us, {scene.per_step(where.total) / 1e6:,.2f} ms a step with the gaps between "
        f"them; one kernel a pass takes about {scene.per_step(left) / 1e6:,.2f} ms",
        "medium",
    )


def _extents(scene: RankContext, chain: Int, part: _Part) -> tuple[Int, Int]:
    """Time of the chain's kernels with the short gaps in front of them."""
    work = scene.work
    at = np.searchsorted(part.rows, chain)
    order = np.lexsort((work.start[chain], part.visit[at] * len(PHASES) + part.phase[at]))
    cell = (part.visit[at] * len(PHASES) + part.phase[at])[order]
    start, end = work.start[chain][order].copy(), work.end[chain][order]
    reached = np.concatenate((start[:1], np.maximum.accumulate(end)[:-1]))
    close = (
        (start - reached < _SMALL_NS) & (reached <= start) & np.concatenate(([False], cell[1:] == cell[:-1]))
    )
    start[close] = reached[close]
    return start, end


def _names(scene: RankContext, part: _Part, grammar: re.Pattern[str]) -> bool:
    """Whether any kernel of the stage has such a name."""
    codes = np.unique(scene.work.name[part.rows])
    return any(grammar.search(scene.work.names[code]) for code in codes.tolist())

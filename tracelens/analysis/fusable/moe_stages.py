"""Routers and permutations of MoE layers that run kernel by kernel."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from tracelens.analysis.fusable.chains import Chains, chains
from tracelens.analysis.fusable.step_work import StepWork
from tracelens.analysis.moe import FORWARD, PERMUTATION, PHASES, ROUTER, regions
from tracelens.arrays import Int
from tracelens.devices import Device
from tracelens.trace import WORK_KINDS, Trace

_FUSED_PERMUTE = re.compile(r"row_id_map|permute|sort_chunks|moe_?sort|align_block", re.IGNORECASE)
_FUSED_ROUTER = re.compile(
    r"fused\w*(?:rout|topk|score)|topk_?(?:softmax|gating)|rout(?:er|ing)", re.IGNORECASE
)
CHAIN = 5
"""A fused permutation is a map, a kernel that moves rows and one that moves them back; a fused router is one
kernel beside its GEMM."""


class StageWork(NamedTuple):
    """The work of one stage of all MoE layers in the steps.

    Attributes:
        rows: positions in the work of the steps.
        cell: layer pass and phase of each: pass * len(PHASES) + phase; negative for an unknown pass.
        kernels: in forward, of a pass.
    """

    rows: Int
    cell: Int
    kernels: float

    @property
    def cells(self) -> Int:
        """The passes and phases that have any of it."""
        return np.unique(self.cell)


def permutation_work(step: StepWork) -> StageWork | str:
    """The work of permutations that are not fused, or why there is none."""
    if not step.trace.once(regions).passes:
        return "no MoE layer"
    stage = _stage_work(step, PERMUTATION)
    if stage.kernels < CHAIN:
        return f"{stage.kernels:.3g} kernels per layer in the permutation"
    return "the permutation is fused" if _is_named(step, stage.rows, _FUSED_PERMUTE) else stage


def router_work(step: StepWork) -> StageWork | str:
    """The work of routers that are not fused, beside their GEMM, or why there is none."""
    if not step.trace.once(regions).passes:
        return "no MoE layer"
    whole = _stage_work(step, ROUTER)
    chain = _stage_work(step, ROUTER, without="gemm")
    if chain.kernels < CHAIN:
        return f"{chain.kernels:.3g} kernels per layer in the router in addition to its GEMM"
    return "the router is fused" if _is_named(step, whole.rows, _FUSED_ROUTER) else chain


def permutation_bytes(step: StepWork, cell: int) -> float:
    """Bytes that permuting and back moves at least: tokens once and once an expert, each way.

    Args:
        step: the work of a rank.
        cell: layer pass and phase, see StageWork.

    Returns:
        0 where the sizes are not known.
    """
    if cell < 0:
        return 0.0
    layer_pass = step.trace.once(regions).passes[cell // len(PHASES)]
    if min(layer_pass.tokens, layer_pass.hidden, layer_pass.top_k) <= 0:
        return 0.0
    return 2.0 * (1 + layer_pass.top_k) * layer_pass.tokens * layer_pass.hidden * layer_pass.itemsize


def permutation_chains(trace: Trace, device: Device | None) -> Chains:
    """The chains of permutations; a fused kernel takes what memory bandwidth allows."""
    step = StepWork(trace, device)
    stage = permutation_work(step)
    if isinstance(stage, str):
        return Chains.none()
    rows, (cells, cell) = _kernels(step, stage)
    moved = np.array([permutation_bytes(step, number) for number in cells.tolist()])
    known = device is not None and device.hbm_bytes_per_s and (moved > 0).all()
    least_ns = moved / device.hbm_bytes_per_s * 1e9 if device is not None and known else None
    return chains(step, rows, cell, least_ns)


def router_chains(trace: Trace, device: Device | None) -> Chains:
    """The chains of routers; a fused kernel takes as long as the longest kernel of its chain.

    Its bytes take no time, so that the chain's own longest kernel says more.
    """
    step = StepWork(trace, device)
    stage = router_work(step)
    if isinstance(stage, str):
        return Chains.none()
    rows, (_, cell) = _kernels(step, stage)
    return chains(step, rows, cell, None)


def _kernels(step: StepWork, stage: StageWork) -> tuple[Int, tuple[Int, Int]]:
    """The kernels of a stage, and (its cells, position of each kernel's cell in them)."""
    kernels = step.work.is_kernel[stage.rows]
    cells, cell = np.unique(stage.cell[kernels], return_inverse=True)
    return stage.rows[kernels], (cells, cell.ravel())


def _stage_work(step: StepWork, stage: int, without: str = "") -> StageWork:
    layers, work = step.trace.once(regions), step.work
    layer_pass, stages, phase = (
        values[step.rows] for values in (layers.layer_pass, layers.stage, layers.phase)
    )
    inside = (stages == stage) & (work.kind != WORK_KINDS.index("comm"))
    passes = len(np.unique(layer_pass[inside & (phase == FORWARD) & (layer_pass >= 0)]))
    if without:
        inside &= work.category != work.categories.index(without)
    rows = np.flatnonzero(inside)
    count = int((work.is_kernel[rows] & (phase[rows] == FORWARD)).sum())
    return StageWork(rows, layer_pass[rows] * len(PHASES) + phase[rows], count / max(passes, 1))


def _is_named(step: StepWork, rows: Int, names: re.Pattern[str]) -> bool:
    """Whether any kernel of these has such a name."""
    codes = np.unique(step.work.name[rows])
    return any(names.search(step.work.names[code]) for code in codes.tolist())

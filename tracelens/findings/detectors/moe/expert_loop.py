"""Experts that are computed one after the other."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracelens.analysis.moe import BACKWARD, EXPERTS, FORWARD, PHASES, LayerPass, regions
from tracelens.analysis.roofline import gemm_rate
from tracelens.arrays import Bool, Float, Int
from tracelens.findings.detectors.detector import Detection, Found, Quantity, detector
from tracelens.findings.rank_context import RankContext
from tracelens.trace import union

_LOOP = 4
"""So many products with weights of one size in one layer are a loop over experts."""


class _Spans(NamedTuple):
    """The loops that the GPU ran: one entry a pass and phase."""

    visit: Int
    phase: Int
    start: Int
    end: Int


@detector(
    "expert_loop",
    title="Expert loop",
    remedy="Compute all experts in one grouped GEMM: Primus' use_turbo_groupmlp, "
    "Megatron-LM --moe-grouped-gemm, torch._grouped_mm, or Hugging Face's grouped experts implementation.",
)
def expert_loop(scene: RankContext) -> Found:
    """At least 4 matrix products of one weight size among the experts of one pass through an MoE layer."""
    found = scene.trace.once(regions)
    if not found.visits:
        return "no MoE layer"
    loops = np.array([_is_loop(visit) for visit in found.visits], dtype=bool)
    if not loops.any():
        grouped = any(visit.grouped for visit in found.visits)
        if any(not visit.grouped and -1 in visit.rows for visit in found.visits):
            return "the sizes of the experts' products are not recorded; use record_shapes=True"
        return "the experts' products are grouped" if grouped else "no loop over experts"
    spans = _spans(scene, loops)
    passes = int((spans.phase == FORWARD).sum())
    if not passes:
        return "no loop over experts in the steps"
    large = gemm_rate(scene.trace, scene.device, found.stage == EXPERTS)
    left = _left(scene, spans, large)
    saving = np.maximum(spans.end - spans.start - left, 0)
    forward = spans.phase == FORWARD
    visits = [found.visits[at] for at in spans.visit[forward].tolist()]
    launches = sum(len(visit.products) for visit in visits) / passes
    wall = float((spans.end - spans.start)[forward].sum())
    rate = sum(_flops(visit) for visit in visits) / max(wall, 1) * 1e9
    gaps = (spans.end - spans.start) - scene.busy.covered(spans.start, spans.end)
    uneven = np.mean([max(visit.rows) / max(np.mean(visit.rows), 1e-9) for visit in visits])
    took = spans.end - spans.start
    return Detection(
        (
            Quantity("products a layer, forward", launches, "count"),
            Quantity("passes a step", scene.per_step(passes), "count"),
            Quantity("time of the loops, a step", scene.per_step(float(took.sum())), "ns"),
            Quantity("gaps between their kernels, a step", scene.per_step(float(gaps.sum())), "ns"),
            Quantity("rate on the summed rows, forward", rate, "flops/s"),
            Quantity("largest expert against the mean", float(uneven), "ratio"),
        ),
        scene.per_step(float(saving.sum())),
        union(spans.start, spans.end),
        f"{launches:.0f} products one after the other in each of {len({one.layer for one in visits})} MoE "
        f"layers, {rate / 1e12:,.0f} TFLOP/s on their summed rows in forward (large products reach "
        f"{large / 1e12:,.0f}); the loops take {scene.per_step(wall) / 1e6:,.1f} ms forward and "
        f"{scene.per_step(float(took[~forward].sum())) / 1e6:,.1f} ms backward of a step, "
        f"{gaps.sum() / max(took.sum(), 1):.0%} of it gaps; grouped they need about "
        f"{scene.per_step(float(left.sum())) / 1e6:,.1f} ms",
        "medium",
    )


def _is_loop(visit: LayerPass) -> bool:
    rows = visit.rows
    return not visit.grouped and len(rows) >= _LOOP and min(rows) >= 0


def _spans(scene: RankContext, loops: Bool) -> _Spans:
    """From the first to the last work of the experts in each pass with a loop, forward and backward."""
    found, work = scene.trace.once(regions), scene.work
    visit, stage, phase = (values[scene.rows] for values in (found.visit, found.stage, found.phase))
    rows = np.flatnonzero((visit >= 0) & (stage == EXPERTS))
    rows = rows[loops[visit[rows]]]
    cells, place = np.unique(visit[rows] * len(PHASES) + phase[rows], return_inverse=True)
    start, end = np.full(len(cells), np.iinfo(np.int64).max), np.zeros(len(cells), dtype=np.int64)
    np.minimum.at(start, place, work.start[rows])
    np.maximum.at(end, place, work.end[rows])
    return _Spans(cells // len(PHASES), cells % len(PHASES), start, end)


def _left(scene: RankContext, spans: _Spans, rate: float) -> Float:
    """Ns that each loop would take as one grouped product after the other.

    The products at the rate of the trace's large ones, twice as many in the backward pass; what lies between
    them (activation, weighting, moving rows in and out) at the memory's bandwidth.
    """
    visits = [scene.trace.once(regions).visits[at] for at in spans.visit.tolist()]
    factor = np.where(spans.phase == BACKWARD, 2.0, 1.0)
    flops = np.array([_flops(visit) for visit in visits])
    moved = np.array([_bytes(visit) for visit in visits])
    if not rate or scene.device is None:
        # Without figures of the device, whatever keeps the GPU busy stays.
        return scene.busy.covered(spans.start, spans.end).astype(float)
    left: Float = factor * (flops / rate + moved / scene.device.hbm_bytes_per_s) * 1e9
    return left


def _flops(visit: LayerPass) -> float:
    """Of the experts' products in forward."""
    return float(sum(2 * one.rows * one.depth * one.columns for one in visit.products))


def _bytes(visit: LayerPass) -> float:
    """Moved between the products: what each one writes is read again, and its input was written before."""
    return float(sum(one.rows * (one.depth + one.columns) for one in visit.products)) * visit.itemsize

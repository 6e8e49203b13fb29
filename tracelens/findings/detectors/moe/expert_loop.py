"""Experts computed sequentially."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracelens.analysis.moe import BACKWARD, EXPERTS, FORWARD, PHASES, LayerPass, regions
from tracelens.analysis.roofline import gemm_rate
from tracelens.arrays import Bool, Float, Int
from tracelens.findings.detectors.detector import Detection, Outcome, Quantity, detector
from tracelens.findings.rank_context import RankContext
from tracelens.trace import union
from tracelens.units import milliseconds

_LOOP = 4
"""This many GEMMs with weights of one size in one layer are a loop over experts."""


class _Spans(NamedTuple):
    """The loops that the GPU ran: one entry a pass and phase."""

    layer_pass: Int
    phase: Int
    start: Int
    end: Int


@detector(
    "expert_loop",
    scenario="grouped_gemm",
    title="Expert loop",
    measures={
        "GEMMs per layer, forward": "mean number of expert GEMMs in a forward pass",
        "passes per step": "forward passes through an MoE layer with a loop",
        "time of the loops per step": "first to last expert work of a pass, forward and backward",
        "gaps between their kernels per step": "part of that time with an idle GPU",
        "rate on the summed rows, forward": "FLOPs of the expert GEMMs / time of the forward loops",
        "largest expert / mean": "rows of the largest expert / mean over the experts",
    },
    threshold=f"{_LOOP} expert GEMMs with weights of one size in one pass",
    limits="Needs the shapes of the GEMMs (record_shapes=True).",
)
def expert_loop(context: RankContext) -> Outcome:
    """At least 4 expert GEMMs with weights of one size run one by one in a pass through an MoE layer."""
    layers = context.trace.once(regions)
    if not layers.passes:
        return "no MoE layer"
    loops = np.array([_is_loop(layer_pass) for layer_pass in layers.passes], dtype=bool)
    if not loops.any():
        grouped = any(layer_pass.grouped for layer_pass in layers.passes)
        if any(not layer_pass.grouped and -1 in layer_pass.rows for layer_pass in layers.passes):
            return "shapes of the expert GEMMs not recorded; use record_shapes=True"
        return "the expert GEMMs are grouped" if grouped else "no loop over experts"
    spans = _spans(context, loops)
    passes = int((spans.phase == FORWARD).sum())
    if not passes:
        return "no loop over experts in the steps"
    peak_rate = gemm_rate(context.trace, context.device, layers.stage == EXPERTS)
    grouped_ns = _grouped_ns(context, spans, peak_rate)
    saving = np.maximum(spans.end - spans.start - grouped_ns, 0)
    forward = spans.phase == FORWARD
    looping = [layers.passes[index] for index in spans.layer_pass[forward].tolist()]
    launches = sum(len(layer_pass.gemms) for layer_pass in looping) / passes
    wall = float((spans.end - spans.start)[forward].sum())
    rate = sum(_flops(layer_pass) for layer_pass in looping) / max(wall, 1) * 1e9
    gaps = (spans.end - spans.start) - context.busy.covered(spans.start, spans.end)
    uneven = np.mean([max(layer_pass.rows) / max(np.mean(layer_pass.rows), 1e-9) for layer_pass in looping])
    loop_ns = spans.end - spans.start
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
        union(spans.start, spans.end),
        f"{launches:.0f} sequential expert GEMMs per MoE layer in {layers_looping} layers reach "
        f"{rate / 1e12:,.0f} TFLOP/s in forward (large GEMMs: {peak_rate / 1e12:,.0f}); the loops take "
        f"{milliseconds(context.per_step(wall), 1)}/step forward and "
        f"{milliseconds(context.per_step(float(loop_ns[~forward].sum())), 1)}/step backward, "
        f"{gaps.sum() / max(loop_ns.sum(), 1):.0%} of that in gaps; grouped GEMMs need about "
        f"{milliseconds(context.per_step(float(grouped_ns.sum())), 1)}/step",
        "medium",
    )


def _is_loop(layer_pass: LayerPass) -> bool:
    rows = layer_pass.rows
    return not layer_pass.grouped and len(rows) >= _LOOP and min(rows) >= 0


def _spans(context: RankContext, loops: Bool) -> _Spans:
    """From the first to the last work of the experts in each pass with a loop, forward and backward."""
    layers, work = context.trace.once(regions), context.work
    layer_pass, stage, phase = (
        values[context.rows] for values in (layers.layer_pass, layers.stage, layers.phase)
    )
    rows = np.flatnonzero((layer_pass >= 0) & (stage == EXPERTS))
    rows = rows[loops[layer_pass[rows]]]
    cells, cell_of = np.unique(layer_pass[rows] * len(PHASES) + phase[rows], return_inverse=True)
    start, end = np.full(len(cells), np.iinfo(np.int64).max), np.zeros(len(cells), dtype=np.int64)
    np.minimum.at(start, cell_of, work.start[rows])
    np.maximum.at(end, cell_of, work.end[rows])
    return _Spans(cells // len(PHASES), cells % len(PHASES), start, end)


def _grouped_ns(context: RankContext, spans: _Spans, rate: float) -> Float:
    """Ns that each loop would take as grouped GEMMs.

    The GEMMs at the rate of the trace's large ones, twice as many in the backward pass; what lies between
    them (activation, weighting, moving rows in and out) at the memory's bandwidth.
    """
    passes = [context.trace.once(regions).passes[index] for index in spans.layer_pass.tolist()]
    factor = np.where(spans.phase == BACKWARD, 2.0, 1.0)
    flops = np.array([_flops(layer_pass) for layer_pass in passes])
    moved = np.array([_bytes(layer_pass) for layer_pass in passes])
    if not rate or context.device is None:
        # Without figures of the device, whatever keeps the GPU busy stays.
        return context.busy.covered(spans.start, spans.end).astype(float)
    grouped_ns: Float = factor * (flops / rate + moved / context.device.hbm_bytes_per_s) * 1e9
    return grouped_ns


def _flops(layer_pass: LayerPass) -> float:
    """FLOPs of the expert GEMMs in forward."""
    return float(sum(2 * gemm.rows * gemm.depth * gemm.columns for gemm in layer_pass.gemms))


def _bytes(layer_pass: LayerPass) -> float:
    """Bytes moved between the GEMMs: what each one writes is read again, and its input was written before."""
    return (
        float(sum(gemm.rows * (gemm.depth + gemm.columns) for gemm in layer_pass.gemms)) * layer_pass.itemsize
    )

"""Tensor-parallel GEMMs that do not overlap their collectives."""

from __future__ import annotations

import numpy as np

from tracelens.analysis.fusable import exposed_pairs, pairs, speed_of_light
from tracelens.findings.detectors.detector import Detection, Outcome, Quantity, detector
from tracelens.findings.rank_context import RankContext
from tracelens.trace import difference, union
from tracelens.units import duration


@detector(
    "gemm_collective",
    scenario="gemm_collective_overlap",
    title="GEMMs do not overlap their collectives",
    measures={
        "pairs per step": "GEMMs that run sequentially with their collective",
        "serialized time": "their GEMMs and exposed transfers, per step",
        "with perfect overlap": "the longer one of each pair, per step",
        "speed of light": "bound for GEMM and transfer together, per step; known devices only",
        "speed of light / time": "the same / serialized time",
    },
    threshold="the GEMM and its collective run in sequence, and no computation hides half of the transfer",
    limits="Assumes that both run at full speed at the same time.",
)
def gemm_collective(context: RankContext) -> Outcome:
    """A GEMM and the collective of its tensor run sequentially (GEMM + reduction, gather + GEMM)."""
    gemm_pairs = pairs(context)
    if isinstance(gemm_pairs, str):
        return gemm_pairs
    start, end = context.work.start[gemm_pairs.row], context.work.end[gemm_pairs.row]
    dur = end - start
    computation = context.work.union("computation")
    exposed, slow = exposed_pairs(context, gemm_pairs)
    count = int(slow.sum())
    if not count:
        return f"the collectives of all {len(slow)} tensor-parallel GEMMs are overlapped"
    light = speed_of_light(gemm_pairs, context.device)
    now = (gemm_pairs.gemm_ns + exposed)[slow]
    # At best the shorter of the two hides in the longer one, and both are bound by the device.
    best = np.maximum(np.maximum(gemm_pairs.gemm_ns, dur), light)[slow]
    saving = context.per_step(float(np.maximum(now - best, 0).sum()))
    measured, limit_ns = context.per_step(float(now.sum())), context.per_step(float(light[slow].sum()))
    kinds = ", ".join(
        f"{int(number)} {kind}"
        for kind, number in zip(
            gemm_pairs.kinds, np.bincount(gemm_pairs.kind[slow], minlength=len(gemm_pairs.kinds)), strict=True
        )
        if number
    )
    limit, bound = "", tuple[Quantity, ...]()
    if context.device:
        limit = f", {duration(limit_ns)} at the speed of light of {context.device.title}"
        share = Quantity("speed of light / time", limit_ns / max(measured, 1), "ratio")
        bound = (Quantity("speed of light", limit_ns, "ns"), share)
    return Detection(
        (
            Quantity("pairs per step", context.per_step(count), "count"),
            Quantity("serialized time", measured, "ns"),
            Quantity("with perfect overlap", context.per_step(float(best.sum())), "ns"),
            *bound,
        ),
        saving,
        difference(union(start[slow], end[slow]), computation),
        f"{count} of {len(slow)} GEMMs do not overlap the collective of their tensor ({kinds}): "
        f"{duration(measured)} per step{limit}; overlapped, only the longer of each pair counts",
        "medium" if context.device else "low",
    )

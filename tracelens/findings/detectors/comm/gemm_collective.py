"""Tensor-parallel matrix products that run one after the other with their collective."""

from __future__ import annotations

import numpy as np

from tracelens.analysis.stragglers import duration
from tracelens.arrays import Float
from tracelens.devices import Device
from tracelens.findings.detectors.detector import Detection, Found, Quantity, detector
from tracelens.findings.fusable import Pairs, fused_ns, pairs
from tracelens.findings.rank_context import RankContext
from tracelens.trace import difference, union


@detector(
    "gemm_collective",
    title="Matrix products and their collectives one after the other",
    remedy="Fuse or overlap them tile by tile: GEMM + reduce-scatter and all-gather + GEMM kernels (Megatron "
    "--tp-comm-overlap with sequence parallelism, torch symmetric memory with async TP, Triton-distributed / "
    "Iris kernels on a symmetric heap as in the AMD Developer Challenge 2025).",
)
def gemm_collective(scene: RankContext) -> Found:
    """A GEMM then a reduction of its result, or a gather then the GEMM that reads it, one after the other."""
    found = pairs(scene)
    if isinstance(found, str):
        return found
    start, end = scene.work.start[found.row], scene.work.end[found.row]
    dur = end - start
    computation = scene.work.union("computation")
    exposed = dur - computation.covered(start, end)
    # A collective that mostly runs beside computation is overlapped already, if not with this product.
    slow = found.serial & (2 * exposed > dur)
    count = int(slow.sum())
    if not count:
        return f"all {len(slow)} matrix products with a collective of their tensor overlap it, or others do"
    light = _limits(found, scene.device)
    now = (found.product_ns + exposed)[slow]
    # At best the shorter of the two hides in the longer one, and both are bound by the device.
    best = np.maximum(np.maximum(found.product_ns, dur), light)[slow]
    saving = scene.per_step(float(np.maximum(now - best, 0).sum()))
    measured, limit_ns = scene.per_step(float(now.sum())), scene.per_step(float(light[slow].sum()))
    kinds = ", ".join(
        f"{int(number)} {kind}"
        for kind, number in zip(
            found.kinds, np.bincount(found.kind[slow], minlength=len(found.kinds)), strict=True
        )
        if number
    )
    said, bound = "", tuple[Quantity, ...]()
    if scene.device:
        said = f", {duration(limit_ns)} at the speed of light of {scene.device.title}"
        share = Quantity("speed of light / time", limit_ns / max(measured, 1), "ratio")
        bound = (Quantity("speed of light", limit_ns, "ns"), share)
    return Detection(
        (
            Quantity("pairs a step", scene.per_step(count), "count"),
            Quantity("time one after the other", measured, "ns"),
            Quantity("with perfect overlap", scene.per_step(float(best.sum())), "ns"),
            *bound,
        ),
        saving,
        difference(union(start[slow], end[slow]), computation),
        f"{count} of {len(slow)} matrix products with a collective of their tensor ({kinds}) do not overlap "
        f"it: {duration(measured)} a step{said}; the shorter of the two could hide in the longer",
        "medium" if scene.device else "low",
    )


def _limits(found: Pairs, device: Device | None) -> Float:
    """Speed of light of each pair, ns; 0 where the device is not known."""
    if device is None:
        return np.zeros(len(found.row))
    columns = (found.cost, found.kind, found.message, found.ranks)
    keys = list(zip(*(some.tolist() for some in columns), strict=True))
    limit = {
        (cost, kind, message, ranks): fused_ns(found.costs[cost], found.kinds[kind], message, ranks, device)
        for cost, kind, message, ranks in set(keys)
    }
    return np.array([limit[key] for key in keys])

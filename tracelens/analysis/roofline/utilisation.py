"""Model FLOPs utilisation of the steps."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracelens.analysis.common import recomputed
from tracelens.analysis.roofline.costing import Costing
from tracelens.arrays import Float, lookup
from tracelens.table import Column, Schema
from tracelens.trace import Trace, Work, launched_in, steps_of

UTILISATION = Schema(
    "Utilisation of the matrix units",
    (
        Column("rank", "int64"),
        Column("step", "str"),
        Column("dur_ns", "int64", "ns", "wall time of the step"),
        Column("flops", "float64", "flops", "of GEMMs, convolutions and attention"),
        Column(
            "recompute_flops", "float64", "flops", "of these, forward work recomputed in the backward pass"
        ),
        Column("flops_per_s", "float64", "flops/s", "flops / wall time"),
        Column("mfu", "float64", "efficiency", "model FLOPs utilisation: without recompute, of peak"),
        Column("hfu", "float64", "efficiency", "hardware FLOPs utilisation: with recompute, of peak"),
    ),
    doc="Of the peak for the element type that most of the FLOPs are in; -1 if the device is unknown. Vector "
    "work is not counted, as is usual for MFU.",
)


def utilisation(trace: Trace, work: Work, costing: Costing, peak: Float) -> dict[str, Any]:
    """Rows of UTILISATION for one rank.

    Args:
        trace: of the rank.
        work: its GPU work.
        costing: how it was counted.
        peak: FLOP/s per kind of call, 0 where not known (see Bounds.peak).
    """
    steps = steps_of(trace)
    # One entry a call: where it begins, and what it is.
    counted = np.flatnonzero(costing.item >= 0)
    _, first = np.unique(costing.call[counted], return_index=True)
    calls = counted[first]
    item = costing.item[calls]
    costs = [entry.cost for entry in costing.items]
    amount = np.array([cost.flops if cost.engine == "matrix" else 0 for cost in costs], dtype=float)
    flops = amount[item] if len(costs) else np.empty(0)
    peak_of_most = _peak_of_most(flops, peak[item]) if flops.any() else np.inf
    is_recompute = lookup(trace.once(recomputed), work.op[calls], False)
    step = launched_in(trace, steps, work.event[calls])
    number = len(steps.labels)

    def total(values: NDArray[Any]) -> Float:
        return np.bincount(step, weights=values, minlength=number).astype(np.float64)

    dur = np.diff(steps.edges)
    seconds = np.maximum(dur, 1) / 1e9
    return {
        "rank": np.full(number, trace.meta.rank),
        "step": steps.labels,
        "dur_ns": dur,
        "flops": total(flops),
        "recompute_flops": total(flops * is_recompute),
        "flops_per_s": total(flops) / seconds,
        "mfu": _share(total(flops * ~is_recompute) / seconds, peak_of_most),
        "hfu": _share(total(flops) / seconds, peak_of_most),
    }


def _peak_of_most(flops: Float, peak: Float) -> float:
    """The peak rate of the element type in which most FLOPs are, 0 where it is not known."""
    peaks, code = np.unique(peak, return_inverse=True)
    return float(peaks[np.argmax(np.bincount(code, weights=flops))])


def _share(rate: Float, peak: float) -> Float:
    return rate / peak if peak > 0 else np.full(len(rate), -1.0)

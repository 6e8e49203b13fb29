"""Model FLOPs utilization of the steps.

The FLOPs of a step are known as far as its GPU time has cost models. Where most of it has none although it
multiplies matrices, as in a replayed graph, their sum says nothing, and the utilization is not computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tracelens.analysis.common import recomputed
from tracelens.analysis.roofline.costing import Costing
from tracelens.analysis.roofline.gemm_flops import on_matrix_units
from tracelens.arrays import Bool, Float, Int, lookup
from tracelens.table import RANK, Column, Schema, Skip, sums
from tracelens.trace import OPAQUE, WORK_KINDS, Trace, Work, launched_in, steps_of

_MOST = 0.5
"""Above this share of uncounted time the names of a step's kernels have to speak for themselves."""

UTILISATION = Schema(
    "Utilization of the matrix units",
    (
        RANK,
        Column("step", "str", doc="step mark, such as ProfilerStep#2"),
        Column("dur_ns", "int64", "ns", "wall time of the step"),
        Column("modelled_fraction", "float64", "fraction", "share of its GPU time that a cost model counts"),
        Column("flops", "float64", "flops", "of GEMMs, convolutions and attention, as far as covered"),
        Column(
            "recompute_flops",
            "float64",
            "flops",
            "part of these: forward work recomputed in the backward pass",
        ),
        Column("flops_per_s", "float64", "flops/s", "flops / wall time"),
        Column("mfu", "float64", "efficiency", "model FLOPs utilization: without recompute, of peak"),
        Column("hfu", "float64", "efficiency", "hardware FLOPs utilization: with recompute, of peak"),
    ),
    doc="Relative to the peak for the element type of most of the FLOPs; -1 if the device is unknown. "
    "Vector work is not counted, as is usual for MFU. FLOPs are also -1 where most of the work is not "
    "covered.",
    leading="mfu",
    absent_is_zero=False,
)


class Utilisation(NamedTuple):
    """Rows of UTILISATION of one rank, and why some have no figures."""

    rows: dict[str, Any]
    skips: list[Skip]


def utilisation(trace: Trace, work: Work, costing: Costing, peak: Float) -> Utilisation:
    """How much of the peak each step of a rank uses.

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
    of_work = launched_in(trace, steps, work.event)
    gpu_ns = sums(of_work, work.dur, number)
    uncounted_ns = sums(of_work, np.where(costing.item < 0, work.dur, 0), number)
    modelled = on_matrix_units(work) & np.isin(costing.item, np.flatnonzero(amount > 0))
    lacking = _lacking(work, costing, of_work, number)
    modelled_ns, lacking_ns = (
        sums(of_work, np.where(mask, work.dur, 0), number) for mask in (modelled, lacking)
    )
    unknown = lacking_ns > modelled_ns
    figures = {
        "flops": total(flops),
        "recompute_flops": total(flops * is_recompute),
        "flops_per_s": total(flops) / seconds,
        "mfu": _share(total(flops * ~is_recompute) / seconds, peak_of_most),
        "hfu": _share(total(flops) / seconds, peak_of_most),
    }
    rows = {
        "rank": np.full(number, trace.meta.rank),
        "step": steps.labels,
        "dur_ns": dur,
        "modelled_fraction": 1 - uncounted_ns / np.maximum(gpu_ns, 1),
        **{name: np.where(unknown, -1.0, values) for name, values in figures.items()},
    }
    share = lacking_ns / np.maximum(lacking_ns + modelled_ns, 1)
    why = _main_reason(work, costing, np.where(lacking, of_work, -1), number)
    return Utilisation(rows, _skips(trace, unknown, share, why, costing.reasons))


def _skips(trace: Trace, unknown: Bool, share: Float, why: Int, reasons: Sequence[str]) -> list[Skip]:
    """Steps whose FLOPs are not known, by the reason for most of their uncounted work.

    Args:
        trace: of the rank.
        unknown: which steps.
        share: of the time that multiplies matrices, what is not counted in each step.
        why: code into `reasons` of each step.
        reasons: why work is not counted.
    """
    labels, skips = steps_of(trace).labels, []
    for code in np.unique(why[unknown]).tolist():
        rows = np.flatnonzero(unknown & (why == code))
        which = labels[rows[0]] if len(rows) == 1 else f"{len(rows)} steps"
        time = f"{share[rows].mean():.1%} of the time in kernels that (may) multiply matrices"
        subject = f"rank {trace.meta.rank}: MFU of {which}"
        skips.append(Skip(subject, f"no cost model for {time}: {reasons[code]}"))
    return skips


def _lacking(work: Work, costing: Costing, step: Int, number: int) -> Bool:
    """Which work is not counted and multiplies matrices, by its class.

    In steps of which most is not counted, kernels whose names do not tell may multiply as well.
    """
    computing = work.kind == WORK_KINDS.index("computation")
    uncounted = computing & (costing.item < 0)
    opaque = np.isin(work.category, [code for code, name in enumerate(work.categories) if name in OPAQUE])
    total_ns, uncounted_ns = (
        sums(step, np.where(mask, work.dur, 0), number) for mask in (computing, uncounted)
    )
    mostly = uncounted_ns > _MOST * total_ns
    lacking: Bool = uncounted & (on_matrix_units(work) | (opaque & mostly[step]))
    return lacking


def _main_reason(work: Work, costing: Costing, step: Int, number: int) -> Int:
    """The reason for most of the work in each step that is not counted; `step` is -1 for other work."""
    ns = np.zeros((number, max(len(costing.reasons), 1)), dtype=np.int64)
    rows = np.flatnonzero((step >= 0) & (costing.reason >= 0))
    np.add.at(ns, (step[rows], costing.reason[rows]), work.dur[rows])
    reason: Int = ns.argmax(axis=1)
    return reason


def _peak_of_most(flops: Float, peak: Float) -> float:
    """The peak rate of the element type in which most FLOPs are, 0 where it is not known."""
    peaks, code = np.unique(peak, return_inverse=True)
    return float(peaks[np.argmax(np.bincount(code, weights=flops))])


def _share(rate: Float, peak: float) -> Float:
    return rate / peak if peak > 0 else np.full(len(rate), -1.0)

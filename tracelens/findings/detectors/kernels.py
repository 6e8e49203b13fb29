"""Kernels that take far longer than the device needs for their work."""

from __future__ import annotations

import numpy as np

from tracelens.analysis.roofline import SLOW_RATIO, SlowCalls, slow_calls
from tracelens.findings.detectors.detector import Detection, Outcome, Quantity, RankContext, detector
from tracelens.table import sums
from tracelens.units import duration

_SHOWN = 3


@detector(
    "slow_kernels",
    evidence="roofline",
    scenario="good_kernels",
    title="Slow kernels",
    symptom=True,
    measures={
        "slow kernels": "time of their calls, per step",
        "at the device's rates": "time that the same calls need, per step",
        "kinds of calls": "ops by arguments",
    },
    threshold=f"calls that take {SLOW_RATIO:g} times as long as the device needs for their size",
    limits="Needs shapes (record_shapes=True) and a known device. Sorts and what has no cost model are not "
    "looked at. Rates of devices that were not measured are those of a measured one, scaled.",
)
def slow_kernels(context: RankContext) -> Outcome:
    """Kernels run far below the rate that the device reaches for work of their size."""
    if not len(context.work.event):
        return "no GPU work"
    if context.device is None:
        return "the device is unknown, and so are its rates: give --device"
    slow = slow_calls(context.trace, context.device)
    if not len(slow.items):
        return f"no kernel takes {SLOW_RATIO:g} times as long as the device needs for its size"
    # The steps' share of each kind's time.
    inside = np.isin(slow.rows, context.rows)
    rows, kind = slow.rows[inside], slow.kind[inside]
    dur = context.trace.work.dur
    in_steps = sums(kind, dur[rows], len(slow.items)) / np.maximum(
        sums(slow.kind, dur[slow.rows], len(slow.items)), 1
    )
    lost_ns, dur_ns = slow.lost_ns * in_steps, slow.dur_ns * in_steps
    if not lost_ns.any():
        return "no slow kernel runs within the steps"
    most = np.argsort(-lost_ns, kind="stable")[:_SHOWN].tolist()
    told = "; ".join(_told(slow, number, context.per_step(float(in_steps[number]))) for number in most)
    more = f"; and {len(slow.items) - _SHOWN} more kinds" if len(slow.items) > _SHOWN else ""
    others = f" and {len(slow.items) - 1} more kinds of calls" if len(slow.items) > 1 else ""
    source = "measured" if slow.is_measured else "scaled from a measured device"
    first = slow.items[most[0]].name
    return Detection(
        (
            Quantity("slow kernels", context.per_step(float(dur_ns.sum())), "ns"),
            Quantity("at the device's rates", context.per_step(float((dur_ns - lost_ns).sum())), "ns"),
            Quantity("kinds of calls", len(slow.items), "count"),
        ),
        context.per_step(float(lost_ns.sum())),
        context.during(np.isin(context.rows, rows)),
        f"{duration(context.per_step(float(dur_ns.sum())))} per step go to calls that need "
        f"{duration(context.per_step(float((dur_ns - lost_ns).sum())))} at the rates that "
        f"{context.device.title} reaches for their sizes ({source}): "
        f"{told}{more}",
        "medium" if slow.is_measured else "low",
        title=f"Slow kernels: {first}{others}",
    )


def _told(slow: SlowCalls, kind: int, per_step: float) -> str:
    """One kind of call with its times and rates; `per_step`: the share of its calls that a step has."""
    item, count = slow.items[kind], float(slow.calls[kind])
    mean_ns, needed_ns = float(slow.dur_ns[kind]) / count, float(slow.reachable_ns[kind])
    cost = item.cost
    moved = cost.read_bytes + cost.write_bytes
    rate = (
        f"{cost.flops / mean_ns / 1e3:,.0f} TFLOP/s"
        if cost.engine == "matrix" and cost.flops
        else f"{moved / mean_ns:,.0f} GB/s"
    )
    return (
        f"{item.name} {item.shapes[:60]}: {count * per_step:,.4g} calls of {duration(mean_ns)} ({rate}) that "
        f"need {duration(needed_ns)}"
    )

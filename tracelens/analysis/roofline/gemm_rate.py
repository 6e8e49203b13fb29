"""FLOP/s of the large GEMMs in a trace: what the same GPU could reach elsewhere."""

from __future__ import annotations

import numpy as np

from tracelens.analysis.roofline.op_calls import OpCalls
from tracelens.arrays import Bool
from tracelens.devices import Device
from tracelens.table import codes
from tracelens.trace import Trace

_LARGE_FLOPS = 20e9
"""A GEMM of this size keeps all units of a GPU busy for tens of microseconds."""
_NAMES = ("aten::mm", "aten::addmm")


def gemm_rate(trace: Trace, device: Device | None, apart: Bool) -> float:
    """FLOP/s of the large GEMMs of a trace, else what the device is known to achieve; 0 if unknown.

    Args:
        trace: of the rank.
        device: that it ran on.
        apart: work that does not count, aligned with the trace's work.
    """
    work, events = trace.work, trace.arrays
    name_codes = [code for code, name in enumerate(events.names) if name in _NAMES]
    rows = np.flatnonzero((work.op >= 0) & ~apart & work.is_kernel)
    rows = rows[np.isin(events.name[work.op[rows]], name_codes)]
    ops = trace.once(OpCalls)
    op = np.unique(work.op[rows])
    group, _ = codes(*ops.keys(op))
    costs = [ops.cost(row) for row in op[np.unique(group, return_index=True)[1]].tolist()]
    flops = np.array([cost.flops if cost is not None else 0 for cost in costs], dtype=float)[group]
    duration = np.zeros(len(op))
    np.add.at(duration, np.searchsorted(op, work.op[rows]), work.dur[rows])
    large = (flops >= _LARGE_FLOPS) & (duration > 0)
    if large.any():
        return float(flops[large].sum() / duration[large].sum() * 1e9)
    if device is None:
        return 0.0
    return device.max_achievable("bf16") or device.peak("matrix", "bf16") or 0.0

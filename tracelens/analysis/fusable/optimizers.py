"""Optimizers that run op by op over their parameters, and what one fused kernel in place of a step takes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from tracelens.analysis.fusable.moe_stages import CHAIN, Chains, StepWork, chains
from tracelens.arrays import Bool, Int, lookup, unique
from tracelens.devices import Device
from tracelens.table import nearest
from tracelens.trace import WORK_KINDS, Trace

# torch.optim's own: it names each step so, and has fused kernels for these classes.
_STEP = re.compile(r"Optimizer\.step#(Adam|AdamW|SGD)\.step$")
_FUSED_OP = "aten::_fused_"
_LISTS = "aten::_foreach_"

_PASSES = {
    "add": 3, "addcdiv_": 4, "addcmul_": 3, "div": 2, "div_": 2, "lerp_": 3, "maximum": 3, "mul": 2,
    "mul_": 2, "neg": 2, "sqrt": 2,
}  # fmt: skip
"""How often an op of torch.optim reads or writes numbers as many as the parameters."""
_ADD_ = {"Adam": 2, "AdamW": 2, "SGD": 3}
"""The same of add_: Adam adds a number to the roots, SGD gradients to momentum, and that to the weights."""
_LAST = {"Adam": "addcdiv_", "AdamW": "addcdiv_", "SGD": "mul_"}
"""The op that each parameter has once; of SGD that of momentum."""
_FUSED_PASSES = {"Adam": 7, "AdamW": 7, "SGD": 5}
"""Of a fused step: it reads weights, gradients and moments, and writes all but gradients."""
SLOWER, SLOWER_LISTS = 1.44, 1.18
"""Time of a byte in fused kernels / in kernels over one parameter, or over lists: in three pairs of runs
each on an H200 (1.41 to 1.48, 1.16 to 1.19)."""


class UnfusedOptimizer(NamedTuple):
    """The steps of an optimizer of one rank that run op by op."""

    kind: str  # class of torch.optim
    rows: Int  # of their kernels, in the work of the steps
    region: Int  # of each: event row of the optimizer's step
    by_lists: bool  # whether ops go over lists of parameters (foreach), not over one parameter each
    fused_share: float  # of the kernels' time, what fused ones take
    host_ns: int  # of the regions in the steps, of the host


def unfused_optimizer(step: StepWork) -> UnfusedOptimizer | None:
    """The optimizer of torch.optim that runs op by op; None where there is none, or where it is fused."""
    events, work = step.trace.arrays, step.work
    kinds = [found[1] if (found := _STEP.match(name)) else "" for name in events.names]
    if not any(kinds) or not len(work.event):
        return None
    is_step = events.named(lambda name: bool(_STEP.match(name)))
    around = lookup(nearest(events.parent, events.depth, is_step), step.caller, -1)
    name = lookup(events.name, work.op, -1)
    inside = (around >= 0) & work.is_kernel & (work.kind != WORK_KINDS.index("comm"))
    if not inside.any():
        return None
    fused = np.isin(around, unique(around[inside & _begins(events.names, name, _FUSED_OP)]))
    rows = np.flatnonzero(inside & ~fused & _begins(events.names, name, "aten::"))
    if not len(rows):
        return None
    region = around[rows]
    regions = unique(region)
    # Several optimizers may take turns: what is said is of the one with most kernels.
    names, count = np.unique(events.name[region], return_counts=True)
    kind = kinds[int(names[count.argmax()])]
    same = events.name[region] == names[count.argmax()]
    rows, region = rows[same], region[same]
    regions = unique(region)
    if len(rows) < CHAIN * len(regions):
        return None
    by_lists = bool(_begins(events.names, name[rows], _LISTS).mean() > 1 / 2)
    calls, count = np.unique(events.name[unique(work.op[rows])], return_counts=True)
    bytes_share = _bytes_share(
        kind,
        {events.names[code]: number for code, number in zip(calls.tolist(), count.tolist(), strict=True)},
    )
    return UnfusedOptimizer(
        kind,
        rows,
        region,
        by_lists,
        min(bytes_share * (SLOWER_LISTS if by_lists else SLOWER), 1.0),
        int((events.end[regions] - events.start[regions]).sum()),
    )


def _bytes_share(kind: str, calls: Mapping[str, int]) -> float:
    """Bytes of fused steps / of these calls by name; 1 where the ops are not those of torch.optim.

    Of an op by lists or by parameters: each goes once over all of them.
    """
    times = Counter[str]()
    for name, count in calls.items():
        times[name.removeprefix(_LISTS).removeprefix("aten::")] += count
    passes = {**_PASSES, "add_": _ADD_[kind]}
    moved = sum(count * passes.get(op, 0) for op, count in times.items())
    return min(_FUSED_PASSES[kind] * times[_LAST[kind]] / moved, 1.0) if times[_LAST[kind]] else 1.0


def optimizer_chains(trace: Trace, device: Device | None) -> Chains:
    """The kernels of each step of the optimizer; a fused one moves the same tensors once."""
    step = StepWork(trace, device)
    optimizer = unfused_optimizer(step)
    if optimizer is None:
        return Chains.none()
    cells, cell = np.unique(optimizer.region, return_inverse=True)
    spent = np.bincount(cell, step.work.dur[optimizer.rows], len(cells))
    return chains(step, optimizer.rows, cell, (spent * optimizer.fused_share).astype(np.float64))


def _begins(names: list[str], code: Int, prefix: str) -> Bool:
    """Which codes are of names that begin so; -1 is of none."""
    return lookup(np.array([name.startswith(prefix) for name in names], dtype=bool), code, False)

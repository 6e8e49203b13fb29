"""Optimizers that run op by op over their parameters, and what one fused kernel in place of a step takes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from tracelens.analysis.fusable.moe_stages import CHAIN, Chains, StepWork, chains
from tracelens.arrays import Int, lookup, unique
from tracelens.devices import Device
from tracelens.table import nearest
from tracelens.trace import WORK_KINDS, Trace, matching

# torch.optim's own: it names each step so, and has fused kernels for these classes.
_STEP = re.compile(r"^Optimizer\.step#(?:Adam|AdamW|SGD)\.step$")
_TORCH, _FUSED, _LISTS = re.compile("^aten::"), re.compile("^aten::_fused_"), re.compile("^aten::_foreach_")

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


class UnfusedOptimizer(Struct, frozen=True):
    """The steps of an optimizer of one rank that run op by op."""

    kind: str  # class of torch.optim
    rows: Int  # of their kernels, in the work of the steps
    region: Int  # of each: event row of the optimizer's step
    by_lists: bool  # whether ops go over lists of parameters (foreach), not over one parameter each
    fused_share: float  # of the kernels' time, what fused ones take
    host_ns: int  # of the regions in the steps, of the host


def unfused_optimizer(step: StepWork) -> UnfusedOptimizer | None:
    """The optimizer of torch.optim that runs op by op; None where there is none, or where it is fused."""
    return step.trace.once(_unfused_optimizer)


def _unfused_optimizer(trace: Trace) -> UnfusedOptimizer | None:
    step = StepWork(trace, None)
    events, work = trace.arrays, step.work
    is_step = matching(events.names, _STEP)
    if not is_step.any() or not len(work.event):
        return None
    around = lookup(nearest(events.parent, events.depth, is_step[events.name]), step.caller, -1)
    op = lookup(events.name, work.op, -1)
    of_torch, fused, by_list = (
        lookup(matching(events.names, pattern), op, False) for pattern in (_TORCH, _FUSED, _LISTS)
    )
    inside = (around >= 0) & work.is_kernel & (work.kind != WORK_KINDS.index("comm"))
    rows = np.flatnonzero(inside & of_torch & ~np.isin(around, around[inside & fused]))
    if not len(rows):
        return None
    # Several optimizers may take turns: what is said is of the one with most kernels.
    optimizer = events.name[around[rows]]
    names, count = np.unique(optimizer, return_counts=True)
    most = int(names[count.argmax()])
    rows = rows[optimizer == most]
    regions = unique(around[rows])
    if len(rows) < CHAIN * len(regions):
        return None
    kind = events.names[most].removeprefix("Optimizer.step#").removesuffix(".step")
    by_lists = bool(by_list[rows].mean() > 1 / 2)
    calls = Counter(events.names[code] for code in events.name[unique(work.op[rows])].tolist())
    return UnfusedOptimizer(
        kind,
        rows,
        around[rows],
        by_lists,
        min(_bytes_share(kind, calls) * (SLOWER_LISTS if by_lists else SLOWER), 1.0),
        int((events.end[regions] - events.start[regions]).sum()),
    )


def _bytes_share(kind: str, calls: Mapping[str, int]) -> float:
    """Bytes of fused steps / of these calls by name; 1 where the ops are not those of torch.optim.

    Of an op by lists or by parameters: each goes once over all of them.
    """
    times = Counter[str]()
    for name, count in calls.items():
        times[name.removeprefix("aten::").removeprefix("_foreach_")] += count
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

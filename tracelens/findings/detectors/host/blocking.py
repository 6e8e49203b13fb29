"""Calls in which the host waits for the GPU, in MoE layers and elsewhere."""

from __future__ import annotations

from collections import Counter

import numpy as np

from tracelens.analysis.moe import DISPATCH, EXPERTS, PERMUTATION, ROUTER, STAGES, Blocking, blocking, regions
from tracelens.arrays import Bool
from tracelens.findings.detectors.detector import Detection, Outcome, Quantity, detector
from tracelens.findings.rank_context import RankContext
from tracelens.trace import Union, enclosing_op, intersection, union
from tracelens.units import milliseconds

_OPS = 3


@detector(
    "moe_blocking_calls",
    title="Blocking calls in MoE layers",
    remedy="Keep sizes on the GPU: sync-free MoE layers (Primus' turbo_sync_free_moe_stage 1 to 3: "
    "moe_permutation_fusion, use_turbo_deepep with use_cuda_num_token_per_expert and num_worst_tokens, "
    "use_turbo_groupmlp; stage 3 needs more memory).",
    launching=True,
)
def moe_blocking_calls(context: RankContext) -> Outcome:
    """Calls in MoE layers in which the host waits for the GPU: item, nonzero, tolist, copies to the host."""
    layers = context.trace.once(regions)
    if not layers.passes:
        return "no MoE layer"
    calls = context.trace.once(blocking)
    inside = _in_steps(context, calls) & (calls.layer_pass >= 0)
    if not inside.any():
        return "no blocking call in MoE layers"
    edges = np.array(context.window)
    starts = np.full(len(layers.passes), -1, dtype=np.int64)
    rows = np.flatnonzero(layers.layer_pass[context.rows] >= 0)
    starts[layers.layer_pass[context.rows][rows]] = context.work.start[rows]
    passes = sum(
        not layer_pass.is_recompute and bool(edges[0] <= start <= edges[1])
        for layer_pass, start in zip(layers.passes, starts.tolist(), strict=True)
    )
    each = int(inside.sum()) / max(passes, 1)
    stages = np.bincount(calls.stage[inside], minlength=len(STAGES)) / max(passes, 1)
    where, until = _idle(context, calls, inside)
    blocked = context.per_step(float(calls.blocked_ns[inside].sum()))
    by_stage = ", ".join(
        f"{count:.3g} in {STAGES[stage]}" for stage, count in enumerate(stages.tolist()) if count
    )
    return Detection(
        (
            Quantity("calls per layer and micro-batch", each, "count"),
            *(
                Quantity(f"calls per layer and micro-batch, {name}", float(stages[stage]), "count")
                for stage, name in enumerate(STAGES)
                if stage in (ROUTER, DISPATCH, PERMUTATION, EXPERTS)
            ),
            Quantity("host blocked per step", blocked, "ns"),
            Quantity("GPU idle meanwhile per step", context.per_step(where.total), "ns"),
            Quantity("GPU idle until the next kernel per step", context.per_step(until), "ns"),
        ),
        context.per_step(where.total),
        where,
        f"{each:.3g} host syncs per layer per micro-batch ({by_stage}; most in "
        f"{_ops(context, calls, inside)}) block the host for {milliseconds(blocked)}/step; "
        f"{_consequence(context, where, until)}",
        "high",
    )


@detector(
    "other_blocking_calls",
    title="Blocking calls outside MoE layers",
    remedy="Move .item(), .cpu(), print and synchronize out of the step: log every N steps, keep losses and "
    "norms on the GPU, copy with non_blocking=True from pinned memory.",
    launching=True,
)
def other_blocking_calls(context: RankContext) -> Outcome:
    """Calls in a step, outside of MoE layers, in which the host waits for the GPU while it runs dry."""
    calls = context.trace.once(blocking)
    inside = _in_steps(context, calls) & (calls.layer_pass < 0)
    if not inside.any():
        return "no blocking call in the steps outside MoE layers"
    where, until = _idle(context, calls, inside)
    count = context.per_step(int(inside.sum()))
    blocked = context.per_step(float(calls.blocked_ns[inside].sum()))
    return Detection(
        (
            Quantity("calls per step", count, "count"),
            Quantity("host blocked per step", blocked, "ns"),
            Quantity("GPU idle meanwhile per step", context.per_step(where.total), "ns"),
            Quantity("GPU idle until the next kernel per step", context.per_step(until), "ns"),
        ),
        context.per_step(where.total),
        where,
        f"{count:,.3g} host syncs per step (most in {_ops(context, calls, inside)}) block the host for "
        f"{milliseconds(blocked)}/step; {_consequence(context, where, until)}",
        "high",
    )


def _in_steps(context: RankContext, calls: Blocking) -> Bool:
    """Which calls begin in a step."""
    result: Bool = (calls.start >= context.host_window[0]) & (calls.start <= context.host_window[1])
    return result


def _idle(context: RankContext, calls: Blocking, mask: Bool) -> tuple[Union, int]:
    """When the GPU is idle while the host sits in such a call, and for how long it is until its next work."""
    pieces = context.idle_by("blocking call")
    start = calls.start[mask]
    inside = union(start, start + calls.blocked_ns[mask])
    until = intersection(context.busy.gaps(), union(start, calls.until[mask]))
    return intersection(union(pieces.start, pieces.end), inside), until.total


def _consequence(context: RankContext, where: Union, until: int) -> str:
    """What the GPU does meanwhile, and afterwards: then no launches are queued ahead."""
    during, after = (milliseconds(context.per_step(ns)) for ns in (where.total, until - where.total))
    return f"the GPU idles {during}/step meanwhile, and {after}/step more until its next work is launched"


def _ops(context: RankContext, calls: Blocking, mask: Bool) -> str:
    """The ops, or calls where there is none around them, with the most blocking calls."""
    events = context.trace.arrays
    around = context.trace.once(enclosing_op)[calls.event[mask]]
    rows = np.where(around >= 0, around, calls.event[mask])
    names = Counter(events.names[code] for code in events.name[rows].tolist())
    return ", ".join(name for name, _ in names.most_common(_OPS))

"""Calls in which the host waits for the GPU, in MoE layers and elsewhere."""

from __future__ import annotations

from collections import Counter
from glob import escape

import numpy as np

from tracelens.analysis.host import CODE
from tracelens.analysis.moe import DISPATCH, EXPERTS, PERMUTATION, ROUTER, STAGES, Blocking, blocking, regions
from tracelens.arrays import Bool, Int
from tracelens.findings.detectors.detector import Detection, Outcome, Quantity, detector
from tracelens.findings.rank_context import RankContext
from tracelens.trace import Union, both, enclosing_op, union
from tracelens.units import milliseconds

_OPS = 3
_MOST = 0.9

_MEASURES = {
    "host blocked per step": "host time in these calls",
    "GPU idle during these calls per step": "idle time while the host is in one of them",
    "GPU idle until the host catches up per step": "idle time after these calls, until work is queued again",
}


@detector(
    "moe_blocking_calls",
    scenario="sync_free",
    title="Blocking calls in MoE layers",
    launching=True,
    measures={
        "calls per layer and micro-batch": "blocking calls in a forward pass through an MoE layer",
        "calls per layer and micro-batch, STAGE": "those in this stage of the layer",
        **_MEASURES,
    },
    threshold="one of these calls in a step",
    limits="Where all launches are late, the time until the host catches up does not count.",
)
def moe_blocking_calls(context: RankContext) -> Outcome:
    """Calls in MoE layers that make the host wait for the GPU: item, nonzero, tolist, copies to the host."""
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
    meanwhile, refill = _idle(context, calls, inside)
    where = _lost(context, meanwhile, refill)
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
            Quantity("GPU idle during these calls per step", context.per_step(meanwhile.total), "ns"),
            Quantity("GPU idle until the host catches up per step", context.per_step(refill.total), "ns"),
        ),
        context.per_step(where.total),
        where,
        f"{each:.3g} host syncs per layer per micro-batch ({by_stage}; most in "
        f"{_ops(context, calls, inside)}) block the host for {milliseconds(blocked)}/step; "
        f"{_consequence(context, meanwhile, refill)}",
        "high" if meanwhile.total > _MOST * where.total else "medium",
    )


@detector(
    "other_blocking_calls",
    scenario="no_blocking",
    title="Blocking calls outside MoE layers",
    launching=True,
    measures={"calls per step": "blocking calls outside MoE layers", **_MEASURES},
    threshold="one of these calls in a step",
    limits="Where all launches are late, the time until the host catches up does not count.",
)
def other_blocking_calls(context: RankContext) -> Outcome:
    """Calls in steps, outside MoE layers, that make the host wait for the GPU while the GPU runs dry."""
    calls = context.trace.once(blocking)
    inside = _in_steps(context, calls) & (calls.layer_pass < 0)
    if not inside.any():
        return "no blocking call in the steps outside MoE layers"
    meanwhile, refill = _idle(context, calls, inside)
    where = _lost(context, meanwhile, refill)
    count = context.per_step(int(inside.sum()))
    blocked = context.per_step(float(calls.blocked_ns[inside].sum()))
    return Detection(
        (
            Quantity("calls per step", count, "count"),
            Quantity("host blocked per step", blocked, "ns"),
            Quantity("GPU idle during these calls per step", context.per_step(meanwhile.total), "ns"),
            Quantity("GPU idle until the host catches up per step", context.per_step(refill.total), "ns"),
        ),
        context.per_step(where.total),
        where,
        f"{count:,.3g} host syncs per step (most in {_ops(context, calls, inside)}) block the host for "
        f"{milliseconds(blocked)}/step; {_consequence(context, meanwhile, refill)}",
        "high" if meanwhile.total > _MOST * where.total else "medium",
        _without(context, calls, inside),
    )


def _in_steps(context: RankContext, calls: Blocking) -> Bool:
    """Which calls begin in a step."""
    result: Bool = (calls.start >= context.host_window[0]) & (calls.start <= context.host_window[1])
    return result


def _idle(context: RankContext, calls: Blocking, mask: Bool) -> tuple[Union, Union]:
    """When the GPU is idle because of such calls: while the host sits in them, and until it has caught up.

    Where the GPU waits for launches anyway, the second is no loss of theirs.
    """
    within = np.isin(context.idle.host, calls.event[mask])
    parts = []
    for cause in ("blocking call", "queue refill"):
        pieces = context.idle.take(within & (context.idle.cause == CODE[cause]))
        parts.append(union(pieces.start, pieces.end))
    meanwhile, refill = parts
    return meanwhile, refill


def _lost(context: RankContext, meanwhile: Union, refill: Union) -> Union:
    return meanwhile if context.is_launch_bound else both(meanwhile, refill)


def _consequence(context: RankContext, meanwhile: Union, refill: Union) -> str:
    """What the GPU does meanwhile, and afterwards."""
    during, after = (milliseconds(context.per_step(idle.total)) for idle in (meanwhile, refill))
    text = f"the GPU idles {during}/step during these calls and {after}/step more until the host catches up"
    return f"{text}, not counted because all launches are late" if context.is_launch_bound else text


def _without(context: RankContext, calls: Blocking, mask: Bool) -> str:
    """The what-if request in which these calls do not wait, but those in MoE layers do.

    Where none is in an MoE layer, no call waits; else those of the op with most waiting, if calls in MoE
    layers are not in it. "" if names do not tell them apart.
    """
    in_layers = calls.event[calls.layer_pass >= 0]
    if not len(in_layers):
        return "no_blocking"
    blocked_ns: Counter[str] = Counter()
    for name, ns in zip(_names(context, calls.event[mask]), calls.blocked_ns[mask].tolist(), strict=True):
        blocked_ns[name] += ns
    ((name, _),) = blocked_ns.most_common(1)
    return "" if name in _all_names(context, in_layers) else f"no_blocking={escape(name)}"


def _all_names(context: RankContext, event: Int) -> set[str]:
    """Names of calls and of all ops around them."""
    events, around = context.trace.arrays, context.trace.once(enclosing_op)
    codes, row = set[int](), event
    while len(row):
        codes.update(np.unique(events.name[row]).tolist())
        # The op around the calls first, then the one around its parent.
        op = around[row if row is event else events.parent[row][events.parent[row] >= 0]]
        row = np.unique(op[op >= 0])
    return {events.names[code] for code in codes}


def _ops(context: RankContext, calls: Blocking, mask: Bool) -> str:
    """The ops, or calls where there is none around them, with the most blocking calls."""
    names = Counter(_names(context, calls.event[mask]))
    return ", ".join(name for name, _ in names.most_common(_OPS))


def _names(context: RankContext, event: Int) -> list[str]:
    """The innermost op around each of these calls, or the call where there is none."""
    events = context.trace.arrays
    around = context.trace.once(enclosing_op)[event]
    rows = np.where(around >= 0, around, event)
    return [events.names[code] for code in events.name[rows].tolist()]

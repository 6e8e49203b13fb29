"""The kernels of the model: those of the loss, what is computed twice, and what is slow."""

from __future__ import annotations

import re

import numpy as np

from tracelens.analysis.common import NODE, recomputed
from tracelens.analysis.fusable import (
    COPY,
    LOSSES,
    NLL_BACK,
    PARALLEL,
    SOFTMAX,
    SOFTMAX_BACK,
    VOCABULARY,
    distinct,
    events_named,
    of_size,
    operands,
    sizes_of,
    unfused_loss,
    width,
)
from tracelens.analysis.roofline import SLOW_RATIO, SlowCalls
from tracelens.arrays import Bool, Int, lookup, unique
from tracelens.findings.detectors.detector import Detection, Outcome, Quantity, RankContext, detector
from tracelens.table import codes, nearest, sums
from tracelens.trace import difference
from tracelens.units import duration

_FUSED = re.compile(
    r"liger\w*cross_entropy|^(?!binary)\w*cross_entropy\w*_kernel|^online_softmax_kernel|xentropy|^_?cce_"
    r"|^triton_\w*(?:log_softmax|nll_loss)",
    re.IGNORECASE,
)
"""Kernels of fused losses: Liger, Transformer Engine, FlashAttention, Apex, cut cross-entropy and those that
torch.compile makes."""
_ALLOCATES = (COPY, SOFTMAX, SOFTMAX_BACK, *NLL_BACK)
"""Ops whose result is a new tensor of the logits' size."""

_SHOWN = 3


@detector(
    "loss_unfused",
    evidence="ops",
    scenario="fused_loss",
    title="Cross-entropy loss runs kernel by kernel",
    fix="a fused loss",
    measures={
        "loss": "time of the chain, per step",
        "share of the step": "time of the chain / step time",
        "kernels per step": "kernels of the chain",
        "passes over the logits per step": "how often its kernels read or write all logits",
        "intermediate copies of the logits": "bytes written in addition to the result, per step",
        "one fused kernel": "time for the least bytes at the achievable bandwidth, per step",
    },
    threshold=f"{VOCABULARY:,} classes",
    limits="Needs the shapes of the loss (record_shapes=True).",
)
def loss_unfused(context: RankContext) -> Outcome:
    """A cross-entropy loss over a vocabulary (4,096 classes and more) runs as a chain of separate kernels."""
    if not len(context.work.event):
        return "no GPU work"
    loss = unfused_loss(context)
    if loss is None:
        names = [context.work.names[code] for code in unique(context.work.name)]
        if fused := next((name for name in names if _FUSED.search(name)), None):
            return f"the loss is already fused ({fused})"
        if not len(events_named(context, *LOSSES, PARALLEL)):
            return "no unfused cross-entropy loss"
        classes = [size.columns for loss_sizes in sizes_of(context) for size in loss_sizes]
        if not classes:
            return "the loss's shapes are not recorded (use record_shapes=True), so its vocabulary is unknown"
        if max(classes) >= VOCABULARY:
            return "the loss runs no kernels of its own over the logits"
        return f"the loss has {max(classes):,} classes, too few for a vocabulary"
    work, sizes, amounts = loss.work, loss.sizes, loss.amounts
    where = context.during(work.mask)
    least = loss.fused_ns
    saving = context.per_step(max(where.total - least, 0.0))
    # Bytes of all tensors of the logits' size that the losses write to new memory.
    group, calls = distinct(context, unique(context.work.op[work.mask & (context.work.op >= 0)]))
    copied = 0.0
    for call, times in zip(calls, np.bincount(group, minlength=len(calls)).tolist(), strict=True):
        like = [tensor for tensor in operands(call) if of_size(tensor, sizes)]
        if like and call.name in _ALLOCATES:
            # The flag of the softmax: it takes 16-bit logits and writes FP32.
            wide = call.name == SOFTMAX and call.flag(2)
            copied += times * like[0].numel * (4 if wide else width(like[0].dtype))
    copies = context.per_step(copied - amounts.backward * amounts.element)
    time, kernels = context.per_step(where.total), context.per_step(int(work.mask.sum()))
    share = where.total / max(context.window[1] - context.window[0], 1)
    shapes = " and ".join(f"{rows:,} x {columns:,}" for rows, columns in sorted(sizes)[:3])
    return Detection(
        (
            Quantity("loss", time, "ns"),
            Quantity("share of the step", min(share, 1.0), "fraction"),
            Quantity("kernels per step", kernels, "count"),
            Quantity("passes over the logits per step", context.per_step(loss.passes), "count"),
            Quantity("intermediate copies of the logits", max(copies, 0.0), "bytes"),
            Quantity("one fused kernel", context.per_step(least), "ns"),
        ),
        saving,
        where,
        f"the loss over {shapes} logits takes {duration(time)} per step ({share:.1%}) "
        f"in {kernels:.0f} kernels that write {max(copies, 0.0) / 1e9:.2f} GB of intermediate copies; one "
        f"fused kernel takes {duration(context.per_step(least))} at {loss.source}",
        "medium",
    )


@detector(
    "recompute",
    evidence="ops",
    scenario="no_recompute",
    title="Activations are recomputed",
    fix="recomputing nothing",
    measures={
        "recompute": "time of recomputed kernels, per step",
        "share of the step": "the same / step time",
        "recomputing backward nodes per step": "nodes of the autograd graph that recompute",
        "recomputed kernels per step": "kernels that repeat forward work",
        "recomputed: CLASS": "time by kernel class, the largest, per step",
    },
    threshold="one recomputed kernel",
    limits="The trace does not show whether there is memory to keep the activations instead.",
)
def recompute(context: RankContext) -> Outcome:
    """Forward ops are recomputed in the backward pass."""
    if not len(context.work.event):
        return "no GPU work"
    is_recompute: Bool = lookup(context.trace.once(recomputed), context.caller, False)
    if not is_recompute.any():
        return "the backward pass recomputes nothing"
    during = context.during(is_recompute)
    where = difference(during, context.during(~is_recompute))
    # The classes of its kernels with the most time.
    group, (category,) = codes(context.work.category[is_recompute])
    total = sums(group, context.work.dur[is_recompute], len(category))
    most = np.argsort(-total, kind="stable")[:_SHOWN]
    families = [(context.work.categories[category[row]], context.per_step(int(total[row]))) for row in most]
    # The nodes of the backward pass that repeat something.
    events = context.trace.arrays
    node = events.named(lambda name: name.startswith(NODE))
    around: Int = nearest(events.parent, events.depth, node)[context.caller[is_recompute]]
    regions = context.per_step(len(unique(around)))
    share = during.total / max(context.window[1] - context.window[0], 1)
    shown = ", ".join(f"{name} {duration(ns)}" for name, ns in families)
    return Detection(
        (
            Quantity("recompute", context.per_step(during.total), "ns"),
            Quantity("share of the step", min(share, 1.0), "fraction"),
            Quantity("recomputing backward nodes per step", regions, "count"),
            Quantity("recomputed kernels per step", context.per_step(int(is_recompute.sum())), "count"),
            *(Quantity(f"recomputed: {name}", ns, "ns") for name, ns in families),
        ),
        context.per_step(where.total),
        where,
        f"{duration(context.per_step(during.total))} per step ({share:.1%}) goes to recompute in "
        f"{regions:.0f} regions, mostly {shown}; {duration(context.per_step(where.total))} is not "
        "overlapped. The trace does not show whether there is memory to keep the activations instead",
        "low",
    )


@detector(
    "slow_kernels",
    evidence="roofline",
    scenario="good_kernels",
    title="Slow kernels",
    fix="kernels at the rates that the device reaches",
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
    slow = context.slow
    if not len(slow.items):
        return f"no kernel takes {SLOW_RATIO:g} times as long as the device needs for its size"
    in_steps = slow.share_within(context.rows, context.trace.work)
    lost_ns, dur_ns = slow.lost_ns * in_steps, slow.dur_ns * in_steps
    if not lost_ns.any():
        return "no slow kernel runs within the steps"
    slow_ns, needed_ns, wasted_ns = (
        context.per_step(float(each.sum())) for each in (dur_ns, dur_ns - lost_ns, lost_ns)
    )
    most = np.argsort(-lost_ns, kind="stable")[:_SHOWN].tolist()
    told = "; ".join(_told(slow, number, context.per_step(float(in_steps[number]))) for number in most)
    more = f"; and {len(slow.items) - _SHOWN} more kinds" if len(slow.items) > _SHOWN else ""
    others = f" and {len(slow.items) - 1} more kinds of calls" if len(slow.items) > 1 else ""
    source = "measured" if slow.is_measured else "scaled from a measured device"
    first = slow.items[most[0]].name
    return Detection(
        (
            Quantity("slow kernels", slow_ns, "ns"),
            Quantity("at the device's rates", needed_ns, "ns"),
            Quantity("kinds of calls", len(slow.items), "count"),
        ),
        wasted_ns,
        context.during(np.isin(context.rows, slow.rows)),
        f"{duration(slow_ns)} per step go to calls that need {duration(needed_ns)} at the rates "
        f"that {context.device.title} reaches for their sizes ({source}): {told}{more}",
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

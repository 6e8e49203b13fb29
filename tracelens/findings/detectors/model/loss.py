"""A cross-entropy loss over a vocabulary that runs as a chain of kernels, each over all of the logits."""

from __future__ import annotations

import re

import numpy as np

from tracelens.analysis.fusable import (
    COPY,
    LOSSES,
    NLL_BACK,
    PARALLEL,
    SOFTMAX,
    SOFTMAX_BACK,
    VOCABULARY,
    LossWork,
    Size,
    distinct,
    events_named,
    of_size,
    operands,
    sizes_of,
    unfused_loss,
    width,
)
from tracelens.findings.detectors.detector import Detection, Outcome, Quantity, detector
from tracelens.findings.rank_context import RankContext
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


@detector(
    "loss_unfused",
    scenario="fused_loss",
    title="Cross-entropy loss runs kernel by kernel",
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
        return _reason(context)
    work, sizes, amounts = loss.work, loss.sizes, loss.amounts
    where = context.during(work.mask)
    least = loss.fused_ns
    saving = context.per_step(max(where.total - least, 0.0))
    copies = context.per_step(_copied(context, work, sizes) - amounts.backward * amounts.element)
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


def _reason(context: RankContext) -> str:
    """Why there is no unfused loss over a vocabulary."""
    if fused := _fused(context):
        return fused
    if not len(events_named(context, *LOSSES, PARALLEL)):
        return "no unfused cross-entropy loss"
    classes = [size.columns for loss_sizes in sizes_of(context) for size in loss_sizes]
    if not classes:
        return "the loss's shapes are not recorded (use record_shapes=True), so its vocabulary is unknown"
    if max(classes) >= VOCABULARY:
        return "the loss runs no kernels of its own over the logits"
    return f"the loss has {max(classes):,} classes, too few for a vocabulary"


def _fused(context: RankContext) -> str:
    """That the loss is fused already, "" where no kernel says so."""
    names = [context.work.names[code] for code in np.unique(context.work.name)]
    return next((f"the loss is already fused ({name})" for name in names if _FUSED.search(name)), "")


def _copied(context: RankContext, work: LossWork, sizes: set[Size]) -> float:
    """Bytes of all tensors of the logits' size that the losses write to new memory."""
    group, calls = distinct(context, np.unique(context.work.op[work.mask & (context.work.op >= 0)]))
    total = 0.0
    for call, times in zip(calls, np.bincount(group, minlength=len(calls)).tolist(), strict=True):
        like = [tensor for tensor in operands(call) if of_size(tensor, sizes)]
        if like and call.name in _ALLOCATES:
            # The flag of the softmax: it takes 16-bit logits and writes FP32.
            wide = call.name == SOFTMAX and call.flag(2)
            total += times * like[0].numel * (4 if wide else width(like[0].dtype))
    return total

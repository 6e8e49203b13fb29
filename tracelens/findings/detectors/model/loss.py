"""A cross-entropy loss over a vocabulary that runs as a chain of kernels, each over all of the logits."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from tracelens.arrays import Bool
from tracelens.costs import OpCall
from tracelens.findings import logits as _logits
from tracelens.findings.detectors.detector import Detection, Outcome, Quantity, detector
from tracelens.findings.logits import LossWork, Size, distinct, of_size, operands, width
from tracelens.findings.rank_context import RankContext
from tracelens.units import duration

_FUSED = re.compile(
    r"liger\w*cross_entropy|^(?!binary)\w*cross_entropy\w*_kernel|^online_softmax_kernel|xentropy|^_?cce_"
    r"|^triton_\w*(?:log_softmax|nll_loss)",
    re.IGNORECASE,
)
"""Kernels of fused losses: Liger, Transformer Engine, FlashAttention, Apex, cut cross-entropy and those that
torch.compile makes."""

_ALLOCATES = (_logits.COPY, _logits.SOFTMAX, _logits.SOFTMAX_BACK, *_logits.NLL_BACK)
"""Ops whose result is a new tensor of the logits' size."""


class _Amounts(NamedTuple):
    """What the losses of the steps have to move.

    Attributes:
        forward: elements of the logits of all forward calls.
        backward: the same of the backward calls.
        element: bytes of an element of the logits as the model made them.
    """

    forward: float
    backward: float
    element: float

    @property
    def least(self) -> float:
        """Bytes that one fused kernel moves: it reads the logits twice and writes their gradient once."""
        return (self.forward + 2 * self.backward) * self.element


@detector(
    "loss_unfused",
    title="Cross-entropy loss runs kernel by kernel",
    remedy="Fuse the loss into one kernel that keeps the logits' own type (Megatron: "
    "--cross-entropy-loss-fusion, with --cross-entropy-fusion-impl te; Primus: the loss fusion helper; else "
    "Liger's cross entropy, or its fused linear cross entropy, which never stores the logits). It also frees "
    "the memory of the intermediate copies.",
)
def loss_unfused(context: RankContext) -> Outcome:
    """A cross-entropy loss over a vocabulary (4,096 classes and more) runs as a chain of separate kernels."""
    if not len(context.work.event):
        return "no GPU work"
    vocabulary_sizes = [
        {size for size in loss_sizes if size.columns >= _logits.VOCABULARY}
        for loss_sizes in _logits.sizes_of(context)
    ]
    if not any(vocabulary_sizes):
        return _reason(context)
    work = _logits.loss_work(context, *vocabulary_sizes)
    group, calls = distinct(context, context.work.op[work.mask & (context.work.op >= 0)])
    sizes = vocabulary_sizes[0] | vocabulary_sizes[1]
    passes = _passes(calls, sizes)
    count = np.bincount(group, minlength=len(calls))
    if not count[passes].sum():
        return _fused(context) or "the loss runs no kernels of its own over the logits"
    amounts = _amounts(context, work)
    rate, source = _rate(context, work, sizes)
    where = context.during(work.mask)
    least = amounts.least / rate * 1e9
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
            Quantity("passes over the logits per step", context.per_step(int(count[passes].sum())), "count"),
            Quantity("intermediate copies of the logits", max(copies, 0.0), "bytes"),
            Quantity("one fused kernel", context.per_step(least), "ns"),
        ),
        saving,
        where,
        f"the loss over {shapes} logits takes {duration(time)} per step ({share:.1%}) "
        f"in {kernels:.0f} kernels that write {max(copies, 0.0) / 1e9:.2f} GB of intermediate copies; one "
        f"fused kernel takes {duration(context.per_step(least))} at {source}",
        "medium",
    )


def _reason(context: RankContext) -> str:
    """Why there is no unfused loss over a vocabulary."""
    if fused := _fused(context):
        return fused
    if not len(_logits.events_named(context, *_logits.LOSSES, _logits.PARALLEL)):
        return "no unfused cross-entropy loss"
    classes = [size.columns for loss_sizes in _logits.sizes_of(context) for size in loss_sizes]
    if not classes:
        return "the loss's shapes are not recorded (use record_shapes=True), so its vocabulary is unknown"
    return f"the loss has {max(classes):,} classes, too few for a vocabulary"


def _fused(context: RankContext) -> str:
    """That the loss is fused already, "" where no kernel says so."""
    names = [context.work.names[code] for code in np.unique(context.work.name)]
    return next((f"the loss is fused already ({name})" for name in names if _FUSED.search(name)), "")


def _passes(calls: Iterable[OpCall], sizes: set[Size]) -> Bool:
    """Which calls are ops of torch itself that work on a tensor as large as the logits."""
    return np.array(
        [
            call.name.startswith("aten::") and any(of_size(tensor, sizes) for tensor in operands(call))
            for call in calls
        ],
        dtype=bool,
    )


def _amounts(context: RankContext, work: LossWork) -> _Amounts:
    group, calls = distinct(context, np.unique(work.part[work.mask & (work.part >= 0)]))
    count = np.bincount(group, minlength=len(calls))
    elements = dict.fromkeys(
        (_logits.SOFTMAX, _logits.SOFTMAX_BACK, _logits.PARALLEL, _logits.PARALLEL_BACK), 0.0
    )
    number = dict.fromkeys(elements, 0)
    element = {_logits.SOFTMAX: 0.0, _logits.PARALLEL: 0.0}
    for call, times in zip(calls, count.tolist(), strict=True):
        if call.name not in elements:
            continue
        number[call.name] += times
        for logits in operands(call)[:1]:
            elements[call.name] += times * logits.numel
            if call.name in element:
                element[call.name] = width(logits.dtype)
    converted = distinct(context, np.unique(context.work.op[work.conversion]))[1]
    narrow = [width(tensor.dtype) for call in converted for tensor in operands(call)[:2]]
    # The backward function is given no logits: it has those of its forward call.
    mean = elements[_logits.PARALLEL] / max(number[_logits.PARALLEL], 1)
    return _Amounts(
        elements[_logits.SOFTMAX] + elements[_logits.PARALLEL],
        elements[_logits.SOFTMAX_BACK] + number[_logits.PARALLEL_BACK] * mean,
        min([*narrow, *(size for size in element.values() if size)], default=4.0),
    )


def _copied(context: RankContext, work: LossWork, sizes: set[Size]) -> float:
    """Bytes of all tensors of the logits' size that the losses write to new memory."""
    group, calls = distinct(context, np.unique(context.work.op[work.mask & (context.work.op >= 0)]))
    total = 0.0
    for call, times in zip(calls, np.bincount(group, minlength=len(calls)).tolist(), strict=True):
        like = [tensor for tensor in operands(call) if of_size(tensor, sizes)]
        if like and call.name in _ALLOCATES:
            # The flag of the softmax: it takes 16-bit logits and writes FP32.
            wide = call.name == _logits.SOFTMAX and call.flag(2)
            total += times * like[0].numel * (4 if wide else width(like[0].dtype))
    return total


def _rate(context: RankContext, work: LossWork, sizes: set[Size]) -> tuple[float, str]:
    """Bytes per second that memory can move: of the device, else what the loss's own kernels reach."""
    if context.device is not None and context.device.hbm_bytes_per_s:
        rate = context.device.hbm_bytes_per_s
        return rate, f"{rate / 1e12:.2f} TB/s of {context.device.title}"
    row = np.flatnonzero(work.mask & (context.work.op >= 0))
    group, calls = distinct(context, context.work.op[row])
    moved = np.array(
        [sum(t.numel * width(t.dtype) for t in operands(call) if of_size(t, sizes)) for call in calls]
    )
    rate = float((moved[group] / np.maximum(context.work.dur[row], 1)).max() * 1e9)
    return rate, f"the {rate / 1e12:.2f} TB/s that its fastest kernel reaches"

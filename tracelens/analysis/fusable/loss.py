"""An unfused cross-entropy loss over a vocabulary: its kernels, and what one fused kernel has to move."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from tracelens.analysis.fusable.chains import Chains, chains
from tracelens.analysis.fusable.logits import (
    PARALLEL,
    PARALLEL_BACK,
    SOFTMAX,
    SOFTMAX_BACK,
    VOCABULARY,
    LossWork,
    Size,
    distinct,
    loss_work,
    of_size,
    operands,
    sizes_of,
    width,
)
from tracelens.analysis.fusable.step_work import StepWork
from tracelens.arrays import Bool
from tracelens.costs import OpCall
from tracelens.devices import Device
from tracelens.trace import Trace


class LossAmounts(NamedTuple):
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


class UnfusedLoss(NamedTuple):
    """The losses of the steps of one rank.

    Attributes:
        sizes: of the logits.
        work: of the losses.
        passes: kernels of torch's own ops that work on a tensor as large as the logits.
        amounts: what has to be moved.
        rate: bytes per second that memory can move.
        source: of the rate, for a sentence.
    """

    sizes: set[Size]
    work: LossWork
    passes: int
    amounts: LossAmounts
    rate: float
    source: str

    @property
    def fused_ns(self) -> float:
        """Time of fused kernels in place of all of it."""
        return self.amounts.least / self.rate * 1e9


def unfused_loss(step: StepWork) -> UnfusedLoss | None:
    """The losses over a vocabulary that run kernel by kernel; None if there are none."""
    if not len(step.work.event):
        return None
    plain, parallel = (
        {size for size in loss_sizes if size.columns >= VOCABULARY} for loss_sizes in sizes_of(step)
    )
    sizes = plain | parallel
    if not sizes:
        return None
    work = loss_work(step, plain, parallel)
    group, calls = distinct(step, step.work.op[work.mask & (step.work.op >= 0)])
    count = np.bincount(group, minlength=len(calls))
    passes = int(count[_passes(calls, sizes)].sum())
    if not passes:
        return None
    return UnfusedLoss(sizes, work, passes, _amounts(step, work), *_rate(step, work, sizes))


def loss_chains(trace: Trace, device: Device | None) -> Chains:
    """The chains of kernels of the losses; a fused kernel takes what memory bandwidth allows."""
    step = StepWork(trace, device)
    loss = unfused_loss(step)
    if loss is None:
        return Chains.none()
    rows = np.flatnonzero(loss.work.mask & step.work.is_kernel)
    return chains(step, rows, np.zeros_like(rows), np.array([loss.fused_ns]))


def _passes(calls: Iterable[OpCall], sizes: set[Size]) -> Bool:
    """Which calls are ops of torch itself that work on a tensor as large as the logits."""
    return np.array(
        [
            call.name.startswith("aten::") and any(of_size(tensor, sizes) for tensor in operands(call))
            for call in calls
        ],
        dtype=bool,
    )


def _amounts(step: StepWork, work: LossWork) -> LossAmounts:
    group, calls = distinct(step, np.unique(work.part[work.mask & (work.part >= 0)]))
    count = np.bincount(group, minlength=len(calls))
    elements = dict.fromkeys((SOFTMAX, SOFTMAX_BACK, PARALLEL, PARALLEL_BACK), 0.0)
    number = dict.fromkeys(elements, 0)
    element = {SOFTMAX: 0.0, PARALLEL: 0.0}
    for call, times in zip(calls, count.tolist(), strict=True):
        if call.name not in elements:
            continue
        number[call.name] += times
        for logits in operands(call)[:1]:
            elements[call.name] += times * logits.numel
            if call.name in element:
                element[call.name] = width(logits.dtype)
    converted = distinct(step, np.unique(step.work.op[work.conversion]))[1]
    narrow = [width(tensor.dtype) for call in converted for tensor in operands(call)[:2]]
    # The backward function is given no logits: it has those of its forward call.
    mean = elements[PARALLEL] / max(number[PARALLEL], 1)
    return LossAmounts(
        elements[SOFTMAX] + elements[PARALLEL],
        elements[SOFTMAX_BACK] + number[PARALLEL_BACK] * mean,
        min([*narrow, *(size for size in element.values() if size)], default=4.0),
    )


def _rate(step: StepWork, work: LossWork, sizes: set[Size]) -> tuple[float, str]:
    """Bytes per second that memory can move: of the device, else what the loss's own kernels reach."""
    if step.device is not None and step.device.hbm_bytes_per_s:
        rate = step.device.hbm_bytes_per_s
        return rate, f"{rate / 1e12:.2f} TB/s of {step.device.title}"
    row = np.flatnonzero(work.mask & (step.work.op >= 0))
    group, calls = distinct(step, step.work.op[row])
    moved = np.array(
        [sum(t.numel * width(t.dtype) for t in operands(call) if of_size(t, sizes)) for call in calls]
    )
    rate = float((moved[group] / np.maximum(step.work.dur[row], 1)).max() * 1e9)
    return rate, f"the {rate / 1e12:.2f} TB/s of its fastest kernel"

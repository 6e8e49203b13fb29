"""An unfused cross-entropy loss over a vocabulary: its kernels, and what one fused kernel has to move."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import prod
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from tracelens.analysis.common import NODE
from tracelens.analysis.fusable.moe_stages import PADDED, VOCABULARY, Chains, StepWork, chains
from tracelens.arrays import Bool, Int, first_rows, lookup, unique
from tracelens.costs import OpCall, Tensor, Uncounted
from tracelens.devices import Device
from tracelens.dtypes import BITS
from tracelens.table import codes, nearest
from tracelens.trace import WORK_KINDS, Trace


class LossAmounts(Struct, frozen=True):
    """What the losses of the steps have to move."""

    forward: float  # elements of the logits of all forward calls
    backward: float  # the same of the backward calls
    element: float  # bytes of an element of the logits as the model made them

    @property
    def least(self) -> float:
        """Bytes that one fused kernel moves: it reads the logits twice and writes their gradient once."""
        return (self.forward + 2 * self.backward) * self.element


class UnfusedLoss(Struct, frozen=True):
    """The losses of the steps of one rank."""

    sizes: set[LogitsShape]  # of the logits
    work: LossWork  # of the losses
    passes: int  # kernels of torch's own ops that work on a tensor as large as the logits
    amounts: LossAmounts  # what has to be moved
    rate: float  # bytes per second that memory can move
    source: str  # of the rate, for a sentence

    @property
    def fused_ns(self) -> float:
        """Time of fused kernels in place of all of it."""
        return self.amounts.least / self.rate * 1e9


LOSSES = ("aten::cross_entropy_loss", "aten::nll_loss_forward", "aten::nll_loss2d_forward")
NLL_BACK = ("aten::nll_loss_backward", "aten::nll_loss2d_backward")
SOFTMAX, SOFTMAX_BACK = "aten::_log_softmax", "aten::_log_softmax_backward_data"
_PARTS = (*LOSSES, SOFTMAX, SOFTMAX_BACK, *NLL_BACK)
COPY = "aten::copy_"
PARALLEL, PARALLEL_BACK = "_VocabParallelCrossEntropy", "_VocabParallelCrossEntropyBackward"
"""Megatron's loss over a vocabulary that ranks share."""


class LogitsShape(NamedTuple):
    """Logits: rows (tokens) by columns (vocabulary, or this rank's part of it)."""

    rows: int
    columns: int


class LossWork(Struct, frozen=True):
    """The work of losses, one element a piece of the work of the context."""

    mask: Bool  # which work it is
    part: Int  # event row of the innermost op of the loss around it, -1 for none
    conversion: Bool  # which work copies logits from one element type to another


def unfused_loss(step: StepWork) -> UnfusedLoss | None:
    """The losses over a vocabulary that run kernel by kernel; None if there are none."""
    loss, device = step.trace.once(_unfused_loss), step.device
    # What memory can move: of the device, else what the loss's own kernels reach.
    if loss is None or device is None or not device.hbm_bytes_per_s:
        return loss
    rate = device.hbm_bytes_per_s
    return replace(loss, rate=rate, source=f"{rate / 1e12:.2f} TB/s of {device.title}")


def _unfused_loss(trace: Trace) -> UnfusedLoss | None:
    step = StepWork(trace, None)
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
    large = [
        call.name.startswith("aten::") and any(of_size(tensor, sizes) for tensor in operands(call))
        for call in calls
    ]
    passes = int(count[np.array(large, dtype=bool)].sum())
    if not passes:
        return None
    group, calls = distinct(step, unique(work.part[work.mask & (work.part >= 0)]))
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
    converted = distinct(step, unique(step.work.op[work.conversion]))[1]
    narrow = [width(tensor.dtype) for call in converted for tensor in operands(call)[:2]]
    # The backward function is given no logits: it has those of its forward call.
    mean = elements[PARALLEL] / max(number[PARALLEL], 1)
    amounts = LossAmounts(
        forward=elements[SOFTMAX] + elements[PARALLEL],
        backward=elements[SOFTMAX_BACK] + number[PARALLEL_BACK] * mean,
        element=min([*narrow, *(size for size in element.values() if size)], default=4.0),
    )
    row = np.flatnonzero(work.mask & (step.work.op >= 0))
    group, calls = distinct(step, step.work.op[row])
    moved = np.array(
        [sum(t.numel * width(t.dtype) for t in operands(call) if of_size(t, sizes)) for call in calls]
    )
    rate = float((moved[group] / np.maximum(step.work.dur[row], 1)).max() * 1e9)
    source = f"the {rate / 1e12:.2f} TB/s of its fastest kernel"
    return UnfusedLoss(sizes=sizes, work=work, passes=passes, amounts=amounts, rate=rate, source=source)


def loss_chains(trace: Trace, device: Device | None) -> Chains:
    """The chains of kernels of the losses; a fused kernel takes what memory bandwidth allows."""
    step = StepWork(trace, device)
    loss = unfused_loss(step)
    if loss is None:
        return Chains.none()
    rows = np.flatnonzero(loss.work.mask & step.work.is_kernel)
    return chains(step, rows, np.zeros_like(rows), np.array([loss.fused_ns]))


def of_size(tensor: Tensor, sizes: set[LogitsShape]) -> bool:
    """Whether a tensor is as large as logits of one of these sizes, with the vocabulary last or second."""
    shape = tensor.shape
    return len(shape) > 1 and any(
        columns in (shape[-1], shape[1]) and rows * columns <= prod(shape) <= PADDED * rows * columns
        for rows, columns in sizes
    )


def operands(call: OpCall) -> list[Tensor]:
    """The tensors of a call, none where they were not recorded."""
    try:
        return call.tensors()
    except Uncounted:
        return []


def width(dtype: str) -> float:
    """Bytes of an element, 0 for an unknown type."""
    return BITS.get(dtype, 0) / 8


def events_named(context: StepWork, *names: str) -> Int:
    """Rows of the ops of these names."""
    events = context.trace.arrays
    return np.flatnonzero(events.named(names.__contains__) & events.where("op"))


def distinct(context: StepWork, rows: Int) -> tuple[Int, list[OpCall]]:
    """Group ops that have the same name and arguments: (group of each row, one call of each group)."""
    if not len(rows):
        return rows, []
    group, (name, *_) = codes(*context.ops.keys(rows))
    return group, [context.ops.call(row) for row in rows[first_rows(group, len(name))].tolist()]


def sizes_of(context: StepWork) -> tuple[set[LogitsShape], set[LogitsShape]]:
    """Logits of the losses in the trace: (of torch's own, of Megatron's), of any number of classes."""
    plain, parallel = set(), set()
    for call in distinct(context, events_named(context, *LOSSES))[1]:
        for tensor in operands(call)[:1]:
            if len(tensor.shape) > 1 and tensor.numel:
                plain.add(LogitsShape(tensor.numel // tensor.shape[1], tensor.shape[1]))
    for call in distinct(context, events_named(context, PARALLEL))[1]:
        for tensor in operands(call)[:1]:
            if len(tensor.shape) > 1 and tensor.numel:
                parallel.add(LogitsShape(tensor.numel // tensor.shape[-1], tensor.shape[-1]))
    return plain, parallel


def loss_work(context: StepWork, plain: set[LogitsShape], parallel: set[LogitsShape]) -> LossWork:
    """Work of losses over logits of these sizes, without the communication in them."""
    events = context.trace.arrays
    parts = np.zeros(len(events.start), dtype=bool)
    if plain:
        parts[
            _matching(
                context,
                events_named(context, *_PARTS),
                lambda call: any(of_size(tensor, plain) for tensor in operands(call)),
            )
        ] = True
    if parallel:
        # Autograd itself converts the gradient to the logits' type, behind the function and inside its node.
        parts[events_named(context, PARALLEL, PARALLEL_BACK, NODE + PARALLEL_BACK)] = True
    around = nearest(events.parent, events.depth, parts)
    part = lookup(around, context.caller, -1)
    # Work that copies logits from or to FP32, before and behind torch's loss.
    conversion = np.zeros(len(context.work.event), dtype=bool)
    shapes = context.trace.tables["ops"].columns["shapes"]
    if plain and COPY in events.names:
        # Arguments are decoded for those only whose text has the number of columns in it.
        row = np.flatnonzero(context.op_names() == events.names.index(COPY))
        row = row[context.ops.row[context.work.op[row]] >= 0]
        text, at_text = np.unique(shapes.codes[context.ops.row[context.work.op[row]]], return_inverse=True)
        columns = re.compile("|".join(rf"\b{size.columns}\b" for size in plain))
        likely = np.array([bool(columns.search(shapes.values[code])) for code in text], dtype=bool)
        row = row[likely[at_text]]
        copies = context.work.op[row]

        def converts(call: OpCall) -> bool:
            tensors = operands(call)[:2]
            return (
                len(tensors) > 1
                and tensors[0].dtype != tensors[1].dtype
                and all(of_size(tensor, plain) for tensor in tensors)
            )

        converting = _matching(context, unique(copies), converts)
        conversion[row[np.isin(copies, converting)]] = True
    comm = context.work.kind == WORK_KINDS.index("comm")
    return LossWork(((part >= 0) | conversion) & ~comm, part, conversion)


def _matching(context: StepWork, rows: Int, matches: Callable[[OpCall], bool]) -> Int:
    group, calls = distinct(context, rows)
    fits = np.array([matches(call) for call in calls], dtype=bool)
    return rows[fits[group]] if len(calls) else rows

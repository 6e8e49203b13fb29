"""Which GPU work computes a cross-entropy loss kernel by kernel, and how large its logits are."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import prod
from typing import NamedTuple

import numpy as np

from tracelens.analysis.common import NODE
from tracelens.analysis.fusable.step_work import StepWork
from tracelens.arrays import Bool, Int, lookup
from tracelens.costs import OpCall, Tensor, Uncounted
from tracelens.dtypes import BITS
from tracelens.table import codes, nearest
from tracelens.trace import WORK_KINDS

VOCABULARY = 4096
"""Fewer classes are no vocabulary: those of language models start at some 30,000 tokens, of which a
tensor-parallel rank may hold an eighth. The loss of a classifier (ImageNet: 1,000) takes microseconds."""

LOSSES = ("aten::cross_entropy_loss", "aten::nll_loss_forward", "aten::nll_loss2d_forward")
NLL_BACK = ("aten::nll_loss_backward", "aten::nll_loss2d_backward")
SOFTMAX, SOFTMAX_BACK = "aten::_log_softmax", "aten::_log_softmax_backward_data"
_PARTS = (*LOSSES, SOFTMAX, SOFTMAX_BACK, *NLL_BACK)
COPY = "aten::copy_"

PARALLEL, PARALLEL_BACK = "_VocabParallelCrossEntropy", "_VocabParallelCrossEntropyBackward"
"""Megatron's loss over a vocabulary that ranks share."""

_PADDED = 1.25
"""Logits may have this many times the rows of the loss: the last token of each sequence predicts nothing."""


class Size(NamedTuple):
    """Logits: rows (tokens) by columns (vocabulary, or this rank's part of it)."""

    rows: int
    columns: int


class LossWork(NamedTuple):
    """The work of losses, one element a piece of the work of the context.

    Attributes:
        mask: which work it is.
        part: event row of the innermost op of the loss around it, -1 for none.
        conversion: which work copies logits from one element type to another.
    """

    mask: Bool
    part: Int
    conversion: Bool


def of_size(tensor: Tensor, sizes: set[Size]) -> bool:
    """Whether a tensor is as large as logits of one of these sizes, with the vocabulary last or second."""
    shape = tensor.shape
    return len(shape) > 1 and any(
        columns in (shape[-1], shape[1]) and rows * columns <= prod(shape) <= _PADDED * rows * columns
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
    """Group ops that have the same name and arguments.

    Args:
        context: of the rank.
        rows: event rows of ops.

    Returns:
        (group of each row, one call of each group).
    """
    if not len(rows):
        return rows, []
    group, _ = codes(*context.ops.keys(rows))
    _, first = np.unique(group, return_index=True)
    return group, [context.ops.call(row) for row in rows[first].tolist()]


def sizes_of(context: StepWork) -> tuple[set[Size], set[Size]]:
    """Logits of the losses in the trace: (of torch's own, of Megatron's), of any number of classes."""
    plain, parallel = set(), set()
    for call in distinct(context, events_named(context, *LOSSES))[1]:
        for tensor in operands(call)[:1]:
            if len(tensor.shape) > 1 and tensor.numel:
                plain.add(Size(tensor.numel // tensor.shape[1], tensor.shape[1]))
    for call in distinct(context, events_named(context, PARALLEL))[1]:
        for tensor in operands(call)[:1]:
            if len(tensor.shape) > 1 and tensor.numel:
                parallel.add(Size(tensor.numel // tensor.shape[-1], tensor.shape[-1]))
    return plain, parallel


def loss_work(context: StepWork, plain: set[Size], parallel: set[Size]) -> LossWork:
    """Work of losses over logits of these sizes, without the communication in them."""
    events = context.trace.arrays
    parts = np.zeros(len(events.start), dtype=bool)
    if plain:
        parts[_matching(context, events_named(context, *_PARTS), lambda call: _has(call, plain))] = True
    if parallel:
        # Autograd itself converts the gradient to the logits' type, behind the function and inside its node.
        parts[events_named(context, PARALLEL, PARALLEL_BACK, NODE + PARALLEL_BACK)] = True
    around = nearest(events.parent, events.depth, parts)
    part = lookup(around, context.caller, -1)
    conversion = _conversions(context, plain)
    comm = context.work.kind == WORK_KINDS.index("comm")
    return LossWork(((part >= 0) | conversion) & ~comm, part, conversion)


def _has(call: OpCall, sizes: set[Size]) -> bool:
    return any(of_size(tensor, sizes) for tensor in operands(call))


def _converts(call: OpCall, sizes: set[Size]) -> bool:
    """Whether a copy changes the element type of logits."""
    tensors = operands(call)[:2]
    return (
        len(tensors) > 1
        and tensors[0].dtype != tensors[1].dtype
        and all(of_size(tensor, sizes) for tensor in tensors)
    )


def _matching(context: StepWork, rows: Int, matches: Callable[[OpCall], bool]) -> Int:
    group, calls = distinct(context, rows)
    fits = np.array([matches(call) for call in calls], dtype=bool)
    return rows[fits[group]] if len(calls) else rows


def _conversions(context: StepWork, sizes: set[Size]) -> Bool:
    """Work that copies logits from or to FP32, before and behind torch's loss."""
    mask = np.zeros(len(context.work.event), dtype=bool)
    events, shapes = context.trace.arrays, context.trace.tables["ops"].columns["shapes"]
    if not sizes or COPY not in events.names:
        return mask
    # Arguments are decoded for those only whose text has the number of columns in it.
    row = np.flatnonzero(context.op_names() == events.names.index(COPY))
    row = row[context.ops.row[context.work.op[row]] >= 0]
    text, at_text = np.unique(shapes.codes[context.ops.row[context.work.op[row]]], return_inverse=True)
    columns = re.compile("|".join(rf"\b{size.columns}\b" for size in sizes))
    likely = np.array([bool(columns.search(shapes.values[code])) for code in text], dtype=bool)
    row = row[likely[at_text]]
    copies = context.work.op[row]
    converting = _matching(context, np.unique(copies), lambda call: _converts(call, sizes))
    mask[row[np.isin(copies, converting)]] = True
    return mask

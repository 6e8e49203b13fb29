"""What caches may hold when a call runs, by what ran before it in the trace.

A trace has no addresses. An argument as large as what a call not long before has written is taken for that: a
layer has no weights as large as its activations, or more bytes than caches hold lie between two uses of them.
"""

from __future__ import annotations

from itertools import zip_longest
from statistics import median_low
from typing import Any

import numpy as np

from tracelens.analysis.roofline import OpCalls
from tracelens.dtypes import element_bytes
from tracelens.limits import MAX_CACHE_AGE
from tracelens.reproducers.arguments import RECORDED
from tracelens.reproducers.calls import callable_op
from tracelens.table import codes
from tracelens.trace import Trace, decoded


def argument_ages(trace: Trace) -> dict[tuple[str, ...], tuple[int | None, ...]]:
    """Bits of the number of bytes that calls touched since each argument was written or touched.

    Returns:
        by op and the texts of RECORDED, of each argument as most calls have it; None: more than caches hold.
    """
    ops, table, work = trace.once(OpCalls), trace.tables["ops"], trace.work
    call = callable_op(trace, work)
    piece = np.flatnonzero(call >= 0)
    piece = piece[np.argsort(work.start[piece], kind="stable")]
    if not len(piece):
        return {}
    piece = piece[np.sort(np.unique(call[piece], return_index=True)[1])]  # the first of each call
    texts = [table.columns[name] for name in RECORDED]
    row = ops.row[call[piece]]
    case, _ = codes(trace.arrays.name[call[piece]], *(text.codes[row].astype(np.int64) for text in texts))
    keys, arguments, written = [], [], []
    for at in piece[np.unique(case, return_index=True)[1]].tolist():
        op = int(call[at])
        recorded = [text.values[text.codes[ops.row[op]]] for text in texts]
        cost = ops.cost(op, work.names[work.name[at]], int(work.blocks[at]), int(work.forward[at]))
        keys.append((ops.name(op), *recorded))
        arguments.append(_bytes(*map(decoded, recorded[:3])))
        in_place = arguments[-1][0] if keys[-1][0].endswith("_") and arguments[-1] else 0
        written.append(cost.write_bytes if cost else in_place)

    # Size of what was written, to the number of bytes that were touched up to its last touch.
    touched: dict[int, int] = {}
    total = 0
    ages: list[list[list[int]]] = [[[] for _ in sizes] for sizes in arguments]
    for code in case.tolist():
        for known, size in zip(ages[code], arguments[code], strict=True):
            known.append((total - touched[size]).bit_length() if size in touched else MAX_CACHE_AGE + 1)
        total += sum(arguments[code]) + written[code]
        touched |= {size: total for size in arguments[code] if size in touched}
        if written[code]:
            touched[written[code]] = total
    middle = [[median_low(known) for known in of_case] for of_case in ages]
    return {
        key: tuple(age if age <= MAX_CACHE_AGE else None for age in of_case)
        for key, of_case in zip(keys, middle, strict=True)
        if min(of_case, default=MAX_CACHE_AGE + 1) <= MAX_CACHE_AGE
    }


def _bytes(shapes: Any, dtypes: Any, strides: Any) -> list[int]:
    """Of each argument: the memory that it lies in, which for a part is that of the whole.

    The profiler does not tell the types of lists of tensors, which are taken for none.
    """
    sizes: list[int] = []
    for dtype, dim, step in zip_longest(dtypes or [], shapes or [], strides or []):
        width = element_bytes(str(dtype or ""))
        sizes.append(width * _extent(dim, step))
    return sizes[: len(dtypes or [])]


def _extent(dim: Any, step: Any) -> int:
    """Elements of the memory that a tensor lies in; 0 for what is none."""
    if not isinstance(dim, list) or not dim or not all(isinstance(size, int) for size in dim):
        return 0
    if not isinstance(step, list) or len(step) != len(dim) or not all(isinstance(by, int) for by in step):
        return int(np.prod(dim, dtype=np.int64))
    return max(size * by for size, by in zip(dim, step, strict=True)) or 1

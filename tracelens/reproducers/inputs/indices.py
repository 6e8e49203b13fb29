"""Index tensors that a trace does not have, from the launch grid of the kernel that reads them.

The profiler records nothing of a list of index tensors (Tensor?[]), but the grids of PyTorch's kernels tell
how many rows were asked for:

    vectorized_gather_kernel<A, ...>   rows x ceil(bytes of a row / (256 A)) blocks
    index_elementwise_kernel<T, V>     ceil(elements / (T V)) blocks; exact to T V elements

Source: PyTorch, ATen/native/cuda/IndexKernelUtils.cu and IndexKernel.cu.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod

import numpy as np

from tracelens.arrays import Int
from tracelens.dtypes import element_bytes
from tracelens.reproducers.inputs.arguments import Argument, Tensor
from tracelens.trace import Trace, Work

INDEXED = ("aten::index", "aten::_unsafe_index")
_ROWS = re.compile(r"vectorized_gather_kernel<(\d{1,3})[,>]")
_ELEMENTS = re.compile(r"index_elementwise_kernel<(\d{1,4}), (\d{1,2})[,>]")
_THREADS = 256


def grids(trace: Trace, work: Work, op: Int) -> tuple[Int, Int]:
    """Kernel and its thread blocks, of work whose op has index tensors that are not recorded.

    Returns:
        code into the trace's names and number of blocks of each piece, -1 for all other work.
    """
    events = trace.arrays
    indexed = [code for code, name in enumerate(events.names) if name in INDEXED]
    is_indexed = (op >= 0) & np.isin(events.name[op], indexed) & work.is_kernel
    return np.where(is_indexed, work.name, -1), np.where(is_indexed, work.blocks, -1)


def complete(op: str, arguments: Sequence[Argument], kernel: str, blocks: int) -> list[Argument]:
    """The arguments with the index tensor over the first dimension, where the kernel tells its length."""
    completed = list(arguments)
    target = completed[0] if completed else None
    if op in INDEXED and len(completed) > 1 and isinstance(target, Tensor) and target.shape:
        rows = _rows(target, kernel, blocks)
        if rows > 0:
            completed[1] = [Tensor("int64", (rows,), (1,))]
    return completed


def _rows(target: Tensor, kernel: str, blocks: int) -> int:
    """Number of rows that a kernel reads, 0 where its grid does not tell."""
    if match := _ROWS.search(kernel):
        row = prod(target.shape[1:]) * element_bytes(target.dtype)
        blocks_per_row = -(-row // (_THREADS * int(match[1]))) if row else 0
        return (
            blocks // blocks_per_row if blocks_per_row and blocks > 0 and blocks % blocks_per_row == 0 else 0
        )
    if (match := _ELEMENTS.search(kernel)) and len(target.shape) == 1 and blocks > 0:
        return blocks * int(match[1]) * int(match[2])
    return 0

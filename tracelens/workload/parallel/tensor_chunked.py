"""Tensor parallelism whose collectives run under GEMMs, in chunks, by asynchronous collectives alone.

Rows are positions times sequences: T of this rank, A = P * T of all P ranks in their order.

- All-gather + GEMM: each rank's rows are a chunk, sent by a broadcast. A rank multiplies its own rows, which
  need no journey, while those of the others come in, and each of these while the next is on its way. They
  land where they belong among all rows, so nothing is copied and the gradient of the weight is one GEMM.
  A ring carries P broadcasts of T rows in P / (P - 1) of the time of one all-gather; sending from pair to
  pair would not need more, but leaves most links of a machine idle where GPUs are joined directly, not by a
  switch.
- GEMM + reduce-scatter: a chunk is some rows of every rank. While it is summed up and scattered, the next is
  multiplied; what shows is the journey of the last, one of CHUNKS. (With each rank's rows as a chunk, half
  of all would show between two ranks.)
- Backward (in `tensor`): all-gather + GEMM runs as here, and the gathered gradient serves the gradients of
  rows and weight alike. GEMM + reduce-scatter stays whole: the gradients of the weights hide it.

`collectives.Waiting.before` is not called: there is work of this micro-batch to wait behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor

from tracelens.workload.parallel.collectives import Group, reduce_scatter_into

# Each has a reduce-scatter of its own: more of them hide more of the journey, but their GEMMs fill a GPU
# less, and short messages travel slower.
CHUNKS = 4


def gather_gemms(x_TD: Tensor, matrices: Sequence[Tensor], group: Group) -> tuple[Tensor, list[Tensor]]:
    """x_AD, the rows of all ranks, and y_AN, these times each matrix (D x N)."""
    ranks, own_rank = group.size(), group.rank()
    x_PTD = x_TD.new_empty(ranks, *x_TD.shape)
    x_PTD[own_rank] = x_TD
    outputs = [x_TD.new_empty(ranks, len(x_TD), matrix_DN.shape[1]) for matrix_DN in matrices]
    coming = [
        dist.broadcast(x_PTD[rank], group_src=rank, group=group, async_op=True) for rank in range(ranks)
    ]
    for rank in [own_rank, *(rank for rank in range(ranks) if rank != own_rank)]:
        if rank != own_rank:
            coming[rank].wait()
        for y_PTN, matrix_DN in zip(outputs, matrices, strict=True):
            torch.mm(x_PTD[rank], matrix_DN, out=y_PTN[rank])
    coming[own_rank].wait()
    return x_PTD.flatten(0, 1), [y_PTN.flatten(0, 1) for y_PTN in outputs]


def scatter_gemms(x_AN: Tensor, matrix_ND: Tensor, group: Group) -> Tensor:
    """y_TD: this rank's rows of the sum over ranks of x_AN times a matrix."""
    x_PTN = x_AN.unflatten(0, (group.size(), -1))
    y_TD = x_AN.new_empty(x_PTN.shape[1], matrix_ND.shape[1])
    matrix_PND = matrix_ND.expand(group.size(), -1, -1)
    leaving = []
    for rows in pieces(len(y_TD)):
        part_PtD = torch.bmm(x_PTN[:, rows], matrix_PND)
        work = reduce_scatter_into(y_TD[rows], part_PtD.flatten(0, 1), group=group, async_op=True)
        leaving.append((work, part_PtD))
    for work, _ in leaving:
        work.wait()
    return y_TD


def pieces(rows: int) -> Iterator[slice]:
    """Rows in CHUNKS pieces of about the same size, or in fewer where there are fewer rows."""
    ends = [rows * piece // CHUNKS for piece in range(CHUNKS + 1)]
    return (slice(start, end) for start, end in pairwise(ends) if start < end)

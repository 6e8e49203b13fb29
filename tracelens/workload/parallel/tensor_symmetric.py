"""Tensor parallelism by torch's fused GEMMs, whose ranks read each other's memory (symmetric memory).

The ops and their strategy are torch's (torch.distributed._symmetric_memory): a rank copies what it needs
from its peers, chunk by chunk, while it multiplies, and no communication library takes part. Rows as in
`tensor_chunked`. There is one buffer for each group, so all GEMMs of a group must run on one stream.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
from torch import Tensor

from tracelens.errors import TracelensError
from tracelens.workload.parallel.collectives import Group

INSTEAD = "use tp_overlap=chunked"

# torch's buffer of a group grows on demand; this much shows whether there can be one.
PROBE_BYTES = 1 << 20

_ready: set[str] = set()


def require(group: Group, device: torch.device) -> None:
    """Check once that the GPUs of a group can read each other's memory; all its ranks must call it.

    Raises:
        TracelensError: no GPU, a torch without the ops, or GPUs that cannot.
    """
    if device.type != "cuda":
        raise TracelensError(f"tp_overlap=symmetric needs GPUs, and the tensors are on {device}: {INSTEAD}")
    if group.group_name in _ready:
        return
    # Where multicast is there, torch would set it up for every buffer, though the ops here never use it.
    os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
    # Importing this registers the ops, and a build of torch need not have it.
    try:
        from torch.distributed import _symmetric_memory as symmetric

        _ = torch.ops.symm_mem.fused_all_gather_matmul, torch.ops.symm_mem.fused_matmul_reduce_scatter
    except (ImportError, AttributeError) as error:
        raise TracelensError(
            f"torch {torch.__version__} lacks the ops of tp_overlap=symmetric: {INSTEAD}"
        ) from error
    try:
        symmetric.get_symm_mem_workspace(group.group_name, min_size=PROBE_BYTES)
    except RuntimeError as error:
        raise TracelensError(
            f"tp_overlap=symmetric: the GPUs of this group cannot read each other's memory "
            f"({str(error).splitlines()[0]}): {INSTEAD}"
        ) from error
    _ready.add(group.group_name)


def gather_gemms(x_TD: Tensor, matrices: Sequence[Tensor], group: Group) -> tuple[Tensor, list[Tensor]]:
    """x_AD, the rows of all ranks, and y_AN, these times each matrix (D x N)."""
    # Where the gathered rows are not asked for, the op may fetch them by NVLink multicast; here they are.
    op = torch.ops.symm_mem.fused_all_gather_matmul
    return op(x_TD.contiguous(), list(matrices), 0, group.group_name, return_A=True)


def scatter_gemms(x_AN: Tensor, matrix_ND: Tensor, group: Group) -> Tensor:
    """y_TD: this rank's rows of the sum over ranks of x_AN times a matrix."""
    return torch.ops.symm_mem.fused_matmul_reduce_scatter(x_AN, matrix_ND, "sum", 0, group.group_name)

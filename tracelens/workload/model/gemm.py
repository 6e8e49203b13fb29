"""Grouped GEMM of torch: the rows of each group times that group's matrix."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from tracelens.errors import TracelensError


def grouped_mm(x_RK: Tensor, w_eKN: Tensor, end_e: Tensor) -> Tensor:
    """y_RN: the rows of each group times that group's matrix.

    The rows are sorted by group; `end_e`, int32, is the row after the last of each.

    Raises:
        TracelensError: this torch has no grouped GEMM.
    """
    # Public since torch 2.10; the same op under a private name before that.
    op: Callable[..., Tensor] | None = getattr(F, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
    if op is None:
        raise TracelensError(
            f"torch {torch.__version__} has no grouped_mm: use experts=loop or a newer torch"
        )
    return op(x_RK, w_eKN, offs=end_e)

"""The routed experts, computed in one of two ways over the same parameters.

`loop` is how most model code starts out: the host reads how many rows each expert got, then runs that
expert's GEMMs. `grouped` hands the row offsets to one kernel for all experts, and the host never waits.
See `dispatch` for the letters of shapes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tracelens.errors import TracelensError
from tracelens.workload import spans
from tracelens.workload.config import ExpertsName, MoEConfig


class Experts(nn.Module):
    """SwiGLU experts with stacked weights; a subclass says how they are multiplied.

    Args:
        config: sizes E, D, F.
    """

    def __init__(self, config: MoEConfig) -> None:
        super().__init__()
        E, D, F_ = config.routed_experts, config.hidden, config.expert_ffn
        self.gate_EDF = nn.Parameter(torch.empty(E, D, F_))
        self.up_EDF = nn.Parameter(torch.empty(E, D, F_))
        self.down_EFD = nn.Parameter(torch.empty(E, F_, D))

    def forward(self, x_RD: Tensor, rows_E: Tensor) -> Tensor:
        """Outputs y_RD of rows sorted by expert, `rows_E` of them for each expert."""
        with spans.span(spans.EXPERTS):
            return self.multiply(x_RD, rows_E)

    def multiply(self, x_RD: Tensor, rows_E: Tensor) -> Tensor:
        """What a subclass computes for `forward`."""
        raise NotImplementedError


class LoopExperts(Experts):
    """One set of GEMMs for each expert; the host waits for the device once per expert."""

    def multiply(self, x_RD: Tensor, rows_E: Tensor) -> Tensor:
        """Outputs y_RD."""
        # unbind, not indexing in the loop: its backward stacks the gradients once, where indexing would
        # add a full-size gradient for each expert.
        weights = zip(self.gate_EDF.unbind(), self.up_EDF.unbind(), self.down_EFD.unbind(), strict=True)
        outputs: list[Tensor] = []
        start = 0
        for expert, (gate_DF, up_DF, down_FD) in enumerate(weights):
            rows = int(rows_E[expert].item())
            # As in most such loops, the backward of this slice adds a gradient of x_RD's full size.
            x_rD = x_RD[start : start + rows]
            outputs.append((F.silu(x_rD @ gate_DF) * (x_rD @ up_DF)) @ down_FD)
            start += rows
        return torch.cat(outputs)


class GroupedExperts(Experts):
    """One grouped GEMM for all experts; row counts stay on the device."""

    def multiply(self, x_RD: Tensor, rows_E: Tensor) -> Tensor:
        """Outputs y_RD."""
        end_E = rows_E.cumsum(0, dtype=torch.int32)
        gate_RF = grouped_mm(x_RD, self.gate_EDF, end_E)
        up_RF = grouped_mm(x_RD, self.up_EDF, end_E)
        return grouped_mm(F.silu(gate_RF) * up_RF, self.down_EFD, end_E)


def grouped_mm(x_RK: Tensor, w_EKN: Tensor, end_E: Tensor) -> Tensor:
    """y_RN: the rows of each group times that group's matrix.

    Args:
        x_RK: rows sorted by group.
        w_EKN: one matrix for each group.
        end_E: int32, the row after the last of each group.

    Raises:
        TracelensError: this torch has no grouped GEMM.
    """
    # Public since torch 2.10; the same op under a private name before that.
    op: Callable[..., Tensor] | None = getattr(F, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
    if op is None:
        raise TracelensError(f"torch {torch.__version__} has no grouped_mm: take the loop, or a newer torch")
    return op(x_RK, w_EKN, offs=end_E)


EXPERTS: dict[ExpertsName, type[Experts]] = {"loop": LoopExperts, "grouped": GroupedExperts}

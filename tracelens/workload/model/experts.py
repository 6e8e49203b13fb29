"""The routed experts of a rank, computed in one of three ways over the same parameters.

`loop` is how most model code starts out: the host reads how many rows each expert has, then runs that
expert's GEMMs. `multistream` spreads the same over four streams. `grouped` gives the row offsets to one
kernel for all experts. See `rows` for the letters of shapes; G = 2 F, gate and up projections side by
side.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tracelens.planner.config import DEVICE_COUNTS, DEVICE_PERMUTE, STATIC, Config, ExpertsName
from tracelens.workload.kernels import kernels
from tracelens.workload.model import gemm
from tracelens.workload.parallel import Groups, shard

STREAMS = 4


class Experts(nn.Module):
    """A rank's SwiGLU experts with stacked weights; a subclass says how they are multiplied."""

    def __init__(self, config: Config, groups: Groups) -> None:
        super().__init__()
        model, parts, part = config.model, config.layout.experts_over, groups.coordinate("ep")
        e, D, F_ = model.experts_count // parts, model.hidden, model.expert_ffn
        self.sync_free, self.fp8 = config.toggles.sync_free, config.toggles.fp8 == "experts"
        self.up_eDG = shard(nn.Parameter(torch.empty(e, D, 2 * F_)), "edp", 0, part, parts)
        self.down_eFD = shard(nn.Parameter(torch.empty(e, F_, D)), "edp", 0, part, parts)

    def forward(self, x_RD: Tensor, rows_e: Tensor) -> Tensor:
        """Outputs y_RD of rows sorted by expert, `rows_e` of them for each; anything in rows behind these."""
        raise NotImplementedError


class LoopExperts(Experts):
    """One set of GEMMs for each expert, whose number of rows the host must know."""

    def forward(self, x_RD: Tensor, rows_e: Tensor) -> Tensor:
        # Before anything else is known, a host asks expert by expert.
        rows = [int(count.item()) for count in rows_e] if self.sync_free < DEVICE_PERMUTE else rows_e.tolist()
        parts = x_RD.split(rows)
        # unbind, not indexing in the loop: its backward stacks the gradients once, where indexing would
        # add a full-size gradient for each expert.
        weights = zip(self.up_eDG.unbind(), self.down_eFD.unbind(), strict=True)
        with self.streams(x_RD) as streams:
            outputs = []
            for expert, (x_rD, (up_DG, down_FD)) in enumerate(zip(parts, weights, strict=True)):
                with streams[expert % len(streams)]:
                    outputs.append(swiglu(x_rD @ up_DG) @ down_FD)
        return torch.cat(outputs)

    def streams(self, x_RD: Tensor) -> AbstractContextManager[list[AbstractContextManager[object]]]:
        """Contexts in which the experts run, in turn."""
        return nullcontext([nullcontext()])


class MultistreamExperts(LoopExperts):
    """The loop on four streams, so that small GEMMs run side by side; in turn on a CPU, which has none."""

    def streams(self, x_RD: Tensor) -> AbstractContextManager[list[AbstractContextManager[object]]]:
        """Side streams that begin after the current one, and which it waits for in the end."""
        return Fork(x_RD) if x_RD.is_cuda else nullcontext([nullcontext()] * STREAMS)


class Fork:
    """Side streams of the device of `x`, which they read; joined again at the end."""

    _made: dict[torch.device, list[torch.cuda.Stream]] = {}  # noqa: RUF012 streams live as long as the process

    def __init__(self, x: Tensor) -> None:
        if x.device not in self._made:
            self._made[x.device] = [torch.cuda.Stream(x.device) for _ in range(STREAMS)]
        self.side, self.main = self._made[x.device], torch.cuda.current_stream(x.device)
        for stream in self.side:
            # The allocator knows only of the stream that x was made on, and must not reuse its memory while a
            # side stream may still read it.
            x.record_stream(stream)

    def __enter__(self) -> list[AbstractContextManager[object]]:
        for stream in self.side:
            stream.wait_stream(self.main)
        return [torch.cuda.stream(stream) for stream in self.side]

    def __exit__(self, *_: object) -> None:
        for stream in self.side:
            self.main.wait_stream(stream)


class GroupedExperts(Experts):
    """One grouped GEMM for all experts, in the model's type or in FP8."""

    def forward(self, x_RD: Tensor, rows_e: Tensor) -> Tensor:
        if self.sync_free < DEVICE_COUNTS:
            # Libraries that take the sizes from the host: they are read, and their sums sent back.
            ends = torch.tensor(rows_e.tolist(), dtype=torch.int32).cumsum(0, dtype=torch.int32)
            end_e = ends.to(x_RD.device)
        else:
            end_e = rows_e.cumsum(0, dtype=torch.int32)
        grouped_mm = gemm.grouped_mm_fp8 if self.fp8 else gemm.grouped_mm
        up_RG = grouped_mm(x_RD, self.up_eDG, end_e)
        # Most rows of a buffer for the worst case hold nothing: only a kernel that knows can leave them out.
        h_RF = _SwiGLU.apply(up_RG, end_e) if self.sync_free >= STATIC else swiglu(up_RG)
        return grouped_mm(h_RF, self.down_eFD, end_e)


def swiglu(up_RG: Tensor) -> Tensor:
    """silu(gate) * up, of both side by side."""
    gate_RF, up_RF = up_RG.chunk(2, dim=-1)
    return F.silu(gate_RF) * up_RF


class _SwiGLU(torch.autograd.Function):
    """The same for the first rows alone, as many as end_e[-1] says on the device."""

    @staticmethod
    def forward(ctx: object, up_RG: Tensor, end_e: Tensor) -> Tensor:
        ctx.save_for_backward(up_RG, end_e)  # type: ignore[attr-defined]
        return kernels(up_RG).swiglu(up_RG, end_e)

    @staticmethod
    def backward(ctx: object, *gradients: Tensor) -> tuple[Tensor, None]:
        up_RG, end_e = ctx.saved_tensors  # type: ignore[attr-defined]
        return kernels(up_RG).swiglu_backward(gradients[0], up_RG, end_e), None


EXPERTS: dict[ExpertsName, type[Experts]] = {
    "loop": LoopExperts,
    "multistream": MultistreamExperts,
    "grouped": GroupedExperts,
}
"""Variants by the name of the toggle."""

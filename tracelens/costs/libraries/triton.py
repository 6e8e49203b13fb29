"""Kernels that torch.compile generates with Triton, from the arguments recorded with their launch.

Inductor records a kernel's launch as an op with the kernel's name, such as `triton_poi_fused_add_0`, and the
shapes of its arguments (PyTorch, torch/_inductor/runtime/triton_heuristics.py). Which of them are inputs,
outputs or both the trace does not tell (in_ptr, out_ptr and in_out_ptr in the kernel's source), so each is
counted once, as read. How many operations were fused is not recorded either: 1 an element of the largest
argument is counted, which is a lower bound of pointwise kernels and reductions and next to nothing beside
their bytes.

Template kernels (`tem`) are GEMMs: 2·M·N·K FLOPs, where the arguments are found to be
(M, K), (K, N) and the result (M, N), in that order, batched or not.
"""

from __future__ import annotations

from math import prod

from tracelens.costs.call import OpCall, Tensor, Uncounted
from tracelens.costs.gemm import gemm_cost
from tracelens.costs.model import OpCost, cost

_NOTE = "every argument once, read or written; operations: 1 an element of the largest argument"


@cost(
    "triton_poi_*", "triton_red_*", "triton_per_*", "triton_for_*", "triton_unk_*", "triton_mix_order_*",
    engine="vector",
)  # fmt: skip
def generated(call: OpCall) -> OpCost:
    """Pointwise kernel or reduction: every tensor argument once."""
    tensors = call.tensors()
    largest = max(tensors, key=lambda tensor: tensor.numel)
    moved = sum(tensor.bytes for tensor in tensors)
    return OpCost(largest.numel, moved, 0, largest.dtype, dims=(("elements", largest.numel),), note=_NOTE)


@cost("triton_tem_*", engine="vector")
def template(call: OpCall) -> OpCost:
    """GEMM (M, K) x (K, N) with whatever was fused behind it."""
    tensors = call.tensors()
    matrices = [tensor for tensor in tensors if len(tensor.shape) in (2, 3)]
    for index, b in enumerate(matrices[1:], 1):
        a, behind = matrices[index - 1], matrices[index + 1 :]
        result = (*a.shape[:-1], b.shape[-1])
        if _chain(a, b) and any(tensor.shape == result for tensor in behind):
            inputs = [tensor for tensor in tensors if tensor is not a and tensor is not b]
            out = next(tensor for tensor in reversed(behind) if tensor.shape == result)
            extra = sum(tensor.bytes for tensor in inputs) - out.bytes
            batch = prod(a.shape[:-2])
            return gemm_cost(call, a, b, a.shape[-2], b.shape[-1], a.shape[-1], batch, extra, out.dtype)
    raise Uncounted("arguments of the template kernel do not show a GEMM")


def _chain(a: Tensor, b: Tensor) -> bool:
    """Whether a @ b is a GEMM or a batched GEMM."""
    return len(a.shape) == len(b.shape) and a.shape[:-2] == b.shape[:-2] and a.shape[-1] == b.shape[-2]

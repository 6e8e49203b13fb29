"""Template kernels of torch.compile, from the arguments recorded with their launch.

They are GEMMs: 2·M·N·K FLOPs, where the arguments are (M, K), (K, N) and the result (M, N), in that order,
batched or not; or convolutions of (N, C, sizes…) with a filter (K, C/groups, taps…) to (N, K, sizes…):
2·prod(result)·prod(filter[1:]).
"""

from __future__ import annotations

from math import prod

from tracelens.costs.call import OpCall, Tensor, Uncounted
from tracelens.costs.gemm import gemm_cost, math_dtype
from tracelens.costs.model import OpCost, cost


@cost("triton_tem_*")
def template(call: OpCall) -> OpCost:
    """GEMM (M, K) x (K, N) or convolution with whatever was fused behind it."""
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
    if "convolution" in call.name:
        return _convolution(call, [tensor for tensor in tensors if len(tensor.shape) in (4, 5)])
    raise Uncounted("arguments of the template kernel do not show a GEMM")


def _convolution(call: OpCall, images: list[Tensor]) -> OpCost:
    """Convolution of the first tensor of four or five dimensions with the second; the last is the result."""
    if len(images) < 3 or len({len(tensor.shape) for tensor in images}) > 1:
        raise Uncounted("arguments of the template kernel do not show a convolution")
    x, weight, out = images[0], images[1], images[-1]
    channels = weight.shape[1]
    if out.shape[:2] != (x.shape[0], weight.shape[0]) or not channels or x.shape[1] % channels:
        raise Uncounted("arguments of the template kernel do not show a convolution")
    flops = 2 * out.numel * prod(weight.shape[1:])
    read = sum(tensor.bytes for tensor in call.tensors()) - out.bytes
    dims = (("N", x.shape[0]), ("C", x.shape[1]), ("K", weight.shape[0]))
    return OpCost(flops, read, out.dense_bytes, math_dtype(call, x, weight), "matrix", dims=dims)


def _chain(a: Tensor, b: Tensor) -> bool:
    """Whether a @ b is a GEMM or a batched GEMM."""
    return len(a.shape) == len(b.shape) and a.shape[:-2] == b.shape[:-2] and a.shape[-1] == b.shape[-2]

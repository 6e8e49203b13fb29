"""Norms fused with what follows them: quantization, padding, modulation; their results are no arguments.

FLOPs an element as in norm.py (RMS norm 4 with its weight, layer norm 5) and quantization.py (2 where the
scale is dynamic), 1 for a residual. Bytes: inputs and parameters once, the quantized elements with their
scales, the sum with the residual and, if requested, the rows before quantization once.

Sources: ROCm/aiter, aiter/ops/groupnorm.py, aiter/ops/triton/quant/fused_mxfp4_quant.py and
fused_fp8_quant.py; vllm-project/vllm, vllm/_aiter_ops.py; ROCm/ATOM, atom/model_ops/layernorm.py;
AMD-AGI/Primus, ops `primus::fused_ln_modulate`. Ops of `sglang_profiler` record tensors only
(AMD-AGI/TraceLens, kernel shape profiler).
"""

from __future__ import annotations

from tracelens.costs.call import OpCall, Tensor, Uncounted, size
from tracelens.costs.model import OpCost, cost
from tracelens.costs.nn.norm import statistic
from tracelens.costs.nn.quantization import DYNAMIC, groups, mxfp4_bytes

_RMS = 4
_LAYER, _LAYER_BACKWARD = 5, 9


@cost("vllm::rocm_aiter_rmsnorm_fp8_group_quant", engine="vector")
def rms_norm_fp8(call: OpCall) -> OpCost:
    """RMS norm of x to fp8 with a float for each group of a row: x, weight, epsilon, group size."""
    return _fp8(call, None, 1, 3)


@cost("vllm::rocm_aiter_rmsnorm_with_add_fp8_group_quant", engine="vector")
def add_rms_norm_fp8(call: OpCall) -> OpCost:
    """The same of x + residual, which is a result too: x, residual, weight, epsilon, group size."""
    return _fp8(call, call.tensor(1), 2, 4)


@cost("aiter::_fuse_rmsnorm_fp4_quant", engine="vector")
def rms_norm_mxfp4(call: OpCall) -> OpCost:
    """RMS norm of x to MXFP4, of a second x without quantization, with a residual of the first.

    Arguments: x, weight, epsilon, second x, its weight, its epsilon, residual, two flags for the layout of
    scales, a flag for rows before quantization.
    """
    second = (call.tensor(3), call.tensor(4)) if call.has(3) else None
    return _mxfp4(call, second, call.tensor(6) if call.has(6) else None, call.flag(9))


@cost("sglang_profiler::fused_mxfp4_quant_fused_rms_mxfp4_quant*", engine="vector")
def rms_norm_mxfp4_launcher(call: OpCall) -> OpCost:
    """The same function without its numbers: a matrix behind which a vector stands is the second x."""
    first, _, *rest = _tensors(call, 2)
    second, residual = None, None
    for index, tensor in enumerate(rest):
        following = rest[index + 1].shape if index + 1 < len(rest) else ()
        if len(tensor.shape) != 2:
            continue
        if len(following) == 1 and second is None:
            second = (tensor, rest[index + 1])
        elif tensor.shape == first.shape and residual is None:
            residual = tensor
    return _mxfp4(call, second, residual, False)


@cost("aiter::fused_add_rmsnorm_pad_", "vllm::rocm_aiter_triton_add_rmsnorm_pad", engine="vector")
def add_rms_norm_padded(call: OpCall) -> OpCost:
    """RMS norm of x + residual, rows padded to a multiple: x, weight, epsilon, residual, the multiple."""
    x, residual = call.tensor(0), call.tensor(3)
    if not x.shape:
        raise Uncounted("an operand without dimensions")
    multiple = call.integer(4, 0)
    # Zeros behind a row are results as well.
    padded = -(-x.shape[-1] // multiple) * multiple if multiple > 0 else x.shape[-1]
    rows = x.numel // (x.shape[-1] or 1)
    written = size(rows * padded, x.dtype) + residual.dense_bytes
    return _cost(x, _RMS + 1, x.bytes + residual.bytes + call.tensor(1).bytes, written)


@cost("aiter::_groupnorm_run", engine="vector")
def group_norm(call: OpCall) -> OpCost:
    """Group norm with weight and bias; newer versions have the result and a workspace in front."""
    first = 0 if call.text(1).isdigit() else 2
    x = call.tensor(first)
    parameters = call.tensor(first + 2).bytes + call.tensor(first + 3).bytes
    return _cost(x, _LAYER + 2, x.bytes + parameters, x.dense_bytes)


@cost("primus::fused_ln_modulate", engine="vector")
def modulated(call: OpCall) -> OpCost:
    """Layer norm of x (S, B, H) times 1 + scale plus shift, (B, H) each; mean and deviation of rows saved."""
    x, scale, shift = call.tensor(0), call.tensor(1), call.tensor(2)
    rows = x.numel // (x.shape[-1] or 1) if x.shape else 0
    written = x.dense_bytes + 2 * size(rows, statistic(x.dtype))
    return _cost(x, _LAYER + 2, x.bytes + scale.bytes + shift.bytes, written)


@cost("primus::fused_ln_modulate_backward", engine="vector")
def modulated_backward(call: OpCall) -> OpCost:
    """Gradients of x, scale (2 FLOPs an element) and shift (1) from the output's, x, statistics, scale."""
    grad, x, scale = call.tensor(0), call.tensor(1), call.tensor(4)
    read = grad.bytes + x.bytes + scale.bytes + call.tensor(2).bytes + call.tensor(3).bytes
    return _cost(x, _LAYER_BACKWARD + 3, read, x.dense_bytes + 2 * scale.dense_bytes)


def _fp8(call: OpCall, residual: Tensor | None, weight: int, group: int) -> OpCost:
    x = call.tensor(0)
    read = x.bytes + call.tensor(weight).bytes + (residual.bytes if residual else 0)
    written = size(x.numel, "fp8") + 4 * groups(x, call.integer(group))
    written += residual.dense_bytes if residual else 0
    return _cost(x, _RMS + DYNAMIC + (residual is not None), read, written)


def _mxfp4(
    call: OpCall, second: tuple[Tensor, Tensor] | None, residual: Tensor | None, plain: bool
) -> OpCost:
    x = call.tensor(0)
    read = x.bytes + call.tensor(1).bytes
    written = mxfp4_bytes(x) + (x.dense_bytes if plain else 0)
    if residual:
        read, written = read + residual.bytes, written + x.dense_bytes
    counted = _cost(x, _RMS + DYNAMIC + (residual is not None), read, written)
    if second is None:
        return counted
    other, weight = second
    return counted._replace(
        flops=counted.flops + _RMS * other.numel,
        read_bytes=read + other.bytes + weight.bytes,
        write_bytes=written + other.dense_bytes,
    )


def _cost(x: Tensor, flops: int, read: int, written: int) -> OpCost:
    rows = x.numel // x.shape[-1] if x.shape and x.shape[-1] else 0
    dims = (("rows", rows), ("width", x.shape[-1])) if rows else ()
    return OpCost(flops * x.numel, read, written, x.dtype, dims=dims)


def _tensors(call: OpCall, least: int) -> list[Tensor]:
    tensors = call.tensors()
    if len(tensors) < least:
        raise Uncounted(f"{len(tensors)} recorded tensors instead of {least}")
    return tensors

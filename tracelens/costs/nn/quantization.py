"""Quantization to 8 and 4 bits, with dynamic or static scales.

FLOPs: 1 an element for its scale, 1 more where the scale is the greatest element's (of a tensor, a row or a
group). Bytes: input once, quantized elements and scales once. Elements of 4 bits are packed in pairs, a scale
of an MX format is a byte (E8M0) for 32 elements (Open Compute Project, "OCP Microscaling Formats (MX)
Specification", 2023). Rows added as padding, rotation and stochastic rounding are not counted.

Sources: ROCm/aiter, aiter/ops/quant.py and aiter/ops/triton/quant; vllm-project/vllm,
vllm/model_executor/layers/quantization/utils/fp8_utils.py; AMD-AGI/Primus-Turbo,
primus_turbo/pytorch/kernels/quantization/quantization_impl.py. Ops of `sglang_profiler` are wrappers around
functions of the same name that record tensors only (AMD-AGI/TraceLens, kernel shape profiler).
"""

from __future__ import annotations

from math import prod

from tracelens.costs.call import OpCall, Tensor, Uncounted, size
from tracelens.costs.model import OpCost, cost
from tracelens.costs.torch import dtype_argument

DYNAMIC = 2
"""FLOPs an element where its scale is dynamic."""
MX_GROUP = 32


@cost(
    "aiter::dynamic_per_tensor_quant", "aiter::dynamic_per_token_scaled_quant",
    "aiter::dynamic_per_group_scaled_quant", "aiter::dynamic_per_group_scaled_quant_fp4", engine="vector",
)  # fmt: skip
def dynamic(call: OpCall) -> OpCost:
    """Quantized elements, input, scales: 2 FLOPs an element."""
    return _into(call, call.tensor(1), (0, 2), DYNAMIC)


@cost("aiter::static_per_tensor_quant", engine="vector")
def static(call: OpCall) -> OpCost:
    """Quantized elements, input, the scale: 1 FLOP an element."""
    return _into(call, call.tensor(1), (0,), 1, extra=call.bytes(2))


@cost(
    "aiter::fused_dynamic_mx_quant_moe_sort_hip", "aiter::fused_dynamic_mxfp4_quant_moe_sort_hip",
    engine="vector",
)  # fmt: skip
def dynamic_sorted(call: OpCall) -> OpCost:
    """The same with scales in the order of the sorted (token, expert) pairs: result, scales, input, order."""
    return _into(call, call.tensor(2), (0, 1), DYNAMIC, extra=call.bytes(3, 4))


@cost("aiter::mxfp4_moe_sort_hip", engine="vector")
def sort_scales(call: OpCall) -> OpCost:
    """Scales into the order of the sorted (token, expert) pairs: sorted scales, scales, order."""
    read, written = call.bytes(1, 2, 3), call.tensor(0)
    return OpCost(0, read, written.bytes, call.tensor(1).dtype)


@cost("vllm::triton_per_token_group_quant_fp8", engine="vector")
def per_group(call: OpCall) -> OpCost:
    """Rows to fp8, with a float for each group of a row."""
    x, group = call.tensor(0), call.integer(1)
    return _new(x, size(x.numel, "fp8") + 4 * groups(x, group))


@cost(
    "sglang_profiler::quant_dynamic_mxfp4_quant*",
    "sglang_profiler::fused_mxfp4_quant_fused_flatten_mxfp4_quant*",
    engine="vector",
)
def mxfp4(call: OpCall) -> OpCost:
    """Rows to MXFP4; of three dimensions the last two are one row."""
    x = call.tensor(0)
    if "flatten" in call.name:
        if len(x.shape) != 3:
            raise Uncounted(f"an operand with {len(x.shape)} dimensions instead of 3")
        x = x._replace(shape=(x.shape[0], x.shape[1] * x.shape[2]))
    return _new(x, mxfp4_bytes(x))


@cost(
    "primus::quantize_mxfp4_dual", "primus_turbo::quantize_mxfp4_dual",
    "primus_turbo_cpp_extension::quantize_mxfp4_dual", engine="vector",
)  # fmt: skip
def mxfp4_both_ways(call: OpCall) -> OpCost:
    """A matrix and its transpose to MXFP4, each with scales of its own: 4 FLOPs an element."""
    x = call.tensor(0)
    if len(x.shape) != 2:
        raise Uncounted(f"an operand with {len(x.shape)} dimensions instead of 2")
    transposed = x._replace(shape=x.shape[::-1])
    return _new(x, mxfp4_bytes(x) + mxfp4_bytes(transposed), 2 * DYNAMIC)


@cost(
    "primus_turbo::quantize_fp8_tensorwise", "primus_turbo_cpp_extension::quantize_fp8_tensorwise",
    engine="vector",
)  # fmt: skip
def tensorwise(call: OpCall) -> OpCost:
    """A tensor to fp8 with one scale, dynamic or an argument; its inverse is a result."""
    x = call.tensor(0)
    out = dtype_argument(call, 1) or "fp8"
    counted = _new(x, size(x.numel, out) + 4, 1 if call.has(2) else DYNAMIC)
    return counted._replace(read_bytes=x.bytes + call.bytes(2))


def groups(x: Tensor, group: int) -> int:
    """Groups of so many elements in all rows of a tensor, the last of a row perhaps shorter."""
    if group <= 0 or not x.shape:
        raise Uncounted("size of the groups not recorded")
    return prod(x.shape[:-1]) * -(-x.shape[-1] // group)


def mxfp4_bytes(x: Tensor) -> int:
    """Bytes of a tensor in MXFP4: half a byte an element, a byte for 32 of a row."""
    return size(x.numel, "fp4") + groups(x, MX_GROUP)


def _into(call: OpCall, x: Tensor, results: tuple[int, ...], flops: int, extra: int = 0) -> OpCost:
    """Results that are arguments; a quantized one may be packed."""
    written = sum(call.tensor(index).bytes for index in results)
    return OpCost(flops * x.numel, x.bytes + extra, written, x.dtype, dims=_dims(x))


def _new(x: Tensor, written: int, flops: int = DYNAMIC) -> OpCost:
    return OpCost(flops * x.numel, x.bytes, written, x.dtype, dims=_dims(x))


def _dims(x: Tensor) -> tuple[tuple[str, int], ...]:
    return (("rows", prod(x.shape[:-1])), ("width", x.shape[-1])) if x.shape else ()

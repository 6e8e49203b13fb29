"""GEMMs: mm, addmm, bmm, baddbmm, linear, matmul and the scaled (fp8, fp4) ones.

A GEMM of (M, K) and (K, N) is M·N inner products of length K: 2·M·N·K FLOPs, times the batch. Adding a
bias is not counted (it is part of the epilogue); its bytes are.
"""

from __future__ import annotations

import re
from math import prod

from tracelens.costs.call import OpCall, Tensor, Uncounted, size
from tracelens.costs.model import OpCost, cost

_TF32 = re.compile(r"tf32|xf32|_s1688", re.IGNORECASE)

# Widest first: a GEMM of mixed types runs in the wider one.
_WIDTH = ("fp64", "fp32", "bf16", "fp16", "fp8e5m2", "fp8e4m3", "i8", "u8", "fp6", "fp4x2", "fp4")


def gemm_cost(
    call: OpCall, a: Tensor, b: Tensor, m: int, n: int, k: int, batch: int = 1, extra: int = 0, out: str = ""
) -> OpCost:
    """The cost of `batch` GEMMs of (m, k) and (k, n).

    Args:
        call: its kernel's name tells TF32 from FP32.
        a: left operand.
        b: right operand.
        m: rows of the result.
        n: columns of the result.
        k: length of the inner products.
        batch: number of GEMMs.
        extra: further bytes read (bias, addend, scales).
        out: element type of the result, that of `a` by default.
    """
    written = size(batch * m * n, out or a.dtype)
    dims = (*((("B", batch),) if batch > 1 else ()), *sizes(m, n, k))
    flops = 2 * batch * m * n * k
    return OpCost(flops, a.bytes + b.bytes + extra, written, math_dtype(call, a, b), "matrix", dims=dims)


def math_dtype(call: OpCall, a: Tensor, b: Tensor) -> str:
    """The type that a GEMM of `a` and `b` runs in."""
    wider = min((a.dtype, b.dtype), key=lambda dtype: _WIDTH.index(dtype) if dtype in _WIDTH else -1)
    return "tf32" if wider == "fp32" and _TF32.search(call.kernel) else wider


@cost("aten::mm", "aten::mm.out", "aten::_int_mm")
def mm(call: OpCall) -> OpCost:
    """(M, K) x (K, N)."""
    a, b = call.tensor(0), call.tensor(1)
    (m, k), (k2, n) = _matrix(a, 2), _matrix(b, 2)
    agree(k, k2)
    return gemm_cost(call, a, b, m, n, k, out="i32" if a.dtype == "i8" else "")


@cost("aten::addmm", "aten::addmm_", "aten::_addmm_activation")
def addmm(call: OpCall) -> OpCost:
    """Bias + (M, K) x (K, N)."""
    bias, a, b = call.tensor(0), call.tensor(1), call.tensor(2)
    (m, k), (k2, n) = _matrix(a, 2), _matrix(b, 2)
    agree(k, k2)
    return gemm_cost(call, a, b, m, n, k, extra=_addend(call, bias, 3))


@cost("aten::bmm", "aten::bmm.out")
def bmm(call: OpCall) -> OpCost:
    """B GEMMs (M, K) x (K, N)."""
    a, b = call.tensor(0), call.tensor(1)
    (batch, m, k), (_, k2, n) = _matrix(a, 3), _matrix(b, 3)
    agree(k, k2)
    return gemm_cost(call, a, b, m, n, k, batch)


@cost("aten::baddbmm", "aten::baddbmm_")
def baddbmm(call: OpCall) -> OpCost:
    """B GEMMs (M, K) x (K, N), added to a tensor that is not read when beta is 0."""
    addend, a, b = call.tensor(0), call.tensor(1), call.tensor(2)
    (batch, m, k), (_, k2, n) = _matrix(a, 3), _matrix(b, 3)
    agree(k, k2)
    return gemm_cost(call, a, b, m, n, k, batch, extra=_addend(call, addend, 3))


@cost("aten::linear", "aten::_linear")
def linear(call: OpCall) -> OpCost:
    """(..., K) x (N, K) transposed, plus bias."""
    x, weight = call.tensor(0), call.tensor(1)
    n, k = _matrix(weight, 2)
    agree(x.shape[-1] if x.shape else 1, k)
    bias = call.bytes(2)
    return gemm_cost(call, x, weight, prod(x.shape[:-1]), n, k, extra=bias)


@cost("aten::matmul", "aten::mv", "aten::dot", "aten::addmv")
def matmul(call: OpCall) -> OpCost:
    """torch.matmul: vectors are widened to matrices, leading dimensions broadcast."""
    first = 1 if call.name == "aten::addmv" else 0
    a, b = call.tensor(first), call.tensor(first + 1)
    a_shape = a.shape if len(a.shape) > 1 else (1, *a.shape)
    b_shape = b.shape if len(b.shape) > 1 else (*b.shape, 1)
    if len(a_shape) < 2 or len(b_shape) < 2:
        raise Uncounted("an operand without dimensions")
    agree(a_shape[-1], b_shape[-2])
    batch = prod(_broadcast(a_shape[:-2], b_shape[:-2]))
    return gemm_cost(call, a, b, a_shape[-2], b_shape[-1], a_shape[-1], batch)


@cost("aten::_scaled_mm", "aten::_scaled_mm_v2")
def scaled_mm(call: OpCall) -> OpCost:
    """Scaled GEMM of 8-bit (or packed 4-bit) matrices; the result is bf16 unless recorded otherwise."""
    a, b = call.tensor(0), call.tensor(1)
    (m, k), (k2, n) = _matrix(a, 2), _matrix(b, 2)
    agree(k, k2)
    scales = call.bytes(*range(2, len(call.dtypes)))
    packed = 2 if a.dtype == "fp4x2" else 1
    return gemm_cost(call, a, b, m, n, k * packed, extra=scales, out="bf16")


def agree(k_a: int, k_b: int) -> None:
    """Raise Uncounted where the inner sizes of two operands differ."""
    if k_a != k_b:
        raise Uncounted(f"recorded shapes disagree on the inner dimension ({k_a} and {k_b})")


def other_side(shape: tuple[int, ...], k: int) -> int:
    """N of a weight stored as (N, K) or (K, N)."""
    first, second = shape
    if first != k:
        agree(k, second)
    return first if second == k else second


def sizes(m: int, n: int, k: int) -> tuple[tuple[str, int], ...]:
    """The named sizes of a GEMM."""
    return (("M", m), ("N", n), ("K", k))


def _matrix(tensor: Tensor, rank: int) -> tuple[int, ...]:
    if len(tensor.shape) != rank:
        raise Uncounted(f"an operand with {len(tensor.shape)} dimensions instead of {rank}")
    return tensor.shape


def _addend(call: OpCall, addend: Tensor, beta: int) -> int:
    """Bytes read of what the result is added to: none when its factor is 0."""
    text = call.text(beta)
    try:
        unused = text != "" and float(text) == 0
    except ValueError:
        unused = False
    return 0 if unused else addend.bytes


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    length = max(len(a), len(b))
    wide_a, wide_b = (1,) * (length - len(a)) + a, (1,) * (length - len(b)) + b
    return tuple(max(x, y) for x, y in zip(wide_a, wide_b, strict=True))

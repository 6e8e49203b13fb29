"""The routed experts: sequential, or as one grouped GEMM."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from tracelens.planner.block.dense import swiglu, swiglu_kernels
from tracelens.planner.block.op import FLOAT32, FP8, Kernel, Load, Value, Weight
from tracelens.planner.block.sizes import Sizes
from tracelens.planner.block.tape import Tape

# Offsets of the experts' rows are int32.
INT32 = 4
# Sequential experts free their activations one by one in the backward, approximated by this many steps.
PIECES = 8

_WEIGHT = Weight("edp", "experts")


def experts(t: Tape, s: Sizes, x: Value, rows: int) -> Value:
    """Expert outputs of this many rows, of which `s.rows` hold a token and are computed."""
    D, F = s.model.hidden, s.model.expert_ffn
    gate_up, down = expert_gemm(s, s.rows, D, 2 * F), expert_gemm(s, s.rows, F, D)
    kernels = gate_up, swiglu_kernels(s.rows * F * s.a), down
    if s.config.toggles.experts == "grouped":
        return _grouped(t, s, x, rows, kernels)
    return _loop(t, s, x, rows, kernels)


def _grouped(t: Tape, s: Sizes, x: Value, rows: int, kernels: Sequence[Sequence[Kernel]]) -> Value:
    D, F = s.model.hidden, s.model.expert_ffn
    gate_up, activation, down = kernels
    up_bytes, down_bytes = s.e * D * 2 * F * s.a, s.e * D * F * s.a
    scratch, backward_scratch = _scratch(s, rows, D, 2 * F)
    up = t.op(
        [x], rows * 2 * F * s.a, saves=[x], extra=s.e * INT32, weights=up_bytes, kernels=gate_up,
        weight=_WEIGHT, scratch=scratch, backward_scratch=backward_scratch,
    )  # fmt: skip
    half = rows * F * s.a
    h = t.op([up], half, saves=[up], kernels=activation) if s.static else _swiglu(t, up, half, activation)
    scratch, backward_scratch = _scratch(s, rows, F, D)
    return t.op(
        [h], rows * s.row, saves=[h], weights=down_bytes, kernels=down, weight=_WEIGHT,
        scratch=scratch, backward_scratch=backward_scratch,
    )  # fmt: skip


class Quantized(NamedTuple):
    """Bytes of the FP8 operands of one grouped GEMM, scales included.

    Attributes:
        forward: rows of the input, and the matrices transposed.
        backward: rows of the output gradient, and the matrices.
    """

    forward: int
    backward: int


def quantized(rows: int, k: int, n: int, matrices: int) -> Quantized:
    """Operands of `rows` rows and (k, n) matrices; a scale is one float32 per row, or per column."""
    elements = matrices * k * n
    return Quantized(
        FP8 * (rows * k + elements) + FLOAT32 * (rows + matrices * n),
        FP8 * (rows * n + elements) + FLOAT32 * (rows + matrices * k),
    )


def expert_gemm(s: Sizes, m: int, k: int, n: int) -> tuple[Kernel, ...]:
    """One GEMM over all experts: in the type of the activations, or quantized to FP8.

    In FP8 quantization reads the operands in their type and writes them; the GEMM reads the copies. The
    weight gradient is computed from the operands in their type.
    """
    (gemm,) = s.gemm(m, k, n, s.e)
    if s.config.toggles.fp8 == "off":
        return (gemm,)
    copies, flops, weights = quantized(m, k, n, s.e), gemm.forward.flops, s.e * k * n
    input_gradient, weight_gradient = gemm.backward.kernels
    operands = m * k + weights, m * n + weights
    casts = (Load(0, size * s.a + copy) for size, copy in zip(operands, copies, strict=True))
    return (
        Kernel("memory", *casts),
        Kernel(
            "gemm",
            Load(flops, copies.forward + m * n * s.a, gemm.forward.kernels, "fp8"),
            Load(flops, copies.backward + m * k * s.a, (input_gradient,), "fp8"),
        ),
        Kernel("gemm", Load(), Load(flops, (m * k + m * n + 2 * weights) * s.a, (weight_gradient,))),
    )


def _scratch(s: Sizes, rows: int, k: int, n: int) -> tuple[int, int]:
    """Bytes of FP8 operands: of the forward, and of the backward beyond the weight gradient after them."""
    if s.config.toggles.fp8 == "off":
        return 0, 0
    copies = quantized(rows, k, n, s.e)
    return copies.forward, max(0, copies.backward - s.e * k * n * s.a)


def _swiglu(t: Tape, up: Value, half: int, kernels: Sequence[Kernel]) -> Value:
    """silu(gate) * up, of gate and up side by side."""
    gate, value = t.split(up, [half, half])
    return swiglu(t, gate, value, kernels)


def _loop(t: Tape, s: Sizes, x: Value, rows: int, kernels: Sequence[Sequence[Kernel]]) -> Value:
    """The weight gradients of all experts are collected, stacked and accumulated."""
    D, F = s.model.hidden, s.model.expert_ffn
    pieces = min(PIECES, s.e)
    parts = t.split(x, [size * s.row for size in _shares(rows, pieces)])
    experts_of = _shares(s.e, pieces)
    ups = t.unbind([count * D * 2 * F * s.a for count in experts_of], _WEIGHT)
    downs = t.unbind([count * D * F * s.a for count in experts_of], _WEIGHT)
    outputs = []
    for part, size, up_w, down_w in zip(parts, _shares(rows, pieces), ups, downs, strict=True):
        gate_up, activation, down = kernels
        up = t.op([part, up_w], size * 2 * F * s.a, saves=[part], kernels=gate_up)
        h = _swiglu(t, up, size * F * s.a, activation)
        outputs.append(t.op([h, down_w], size * s.row, saves=[h], kernels=down))
        # All experts count at the first piece.
        kernels = ((), (), ())
    return t.op(outputs, rows * s.row, gradient="same")


def _shares(rows: int, parts: int) -> list[int]:
    ends = [rows * part // parts for part in range(parts + 1)]
    return [end - start for start, end in pairwise(ends)]

"""Tapes of the routed experts: sequential, or as one grouped GEMM."""

from __future__ import annotations

from itertools import pairwise

from tracelens.planner.expected import quantized
from tracelens.planner.memory.sizes import Sizes
from tracelens.planner.memory.tape import Tape, Value

# Offsets of the experts' rows are int32.
INT32 = 4
# Sequential experts free their activations one by one in the backward, approximated by this many steps.
PIECES = 8


def experts(t: Tape, s: Sizes, x: Value, rows: int) -> Value:
    """Expert outputs of this many rows."""
    if s.config.toggles.experts == "grouped":
        return _grouped(t, s, x, rows)
    return _loop(t, s, x, rows)


def _grouped(t: Tape, s: Sizes, x: Value, rows: int) -> Value:
    D, F = s.model.hidden, s.model.expert_ffn
    up_bytes, down_bytes = s.e * D * 2 * F * s.a, s.e * D * F * s.a
    scratch, backward_scratch = _quantized(s, rows, D, 2 * F)
    up = t.op(
        [x], rows * 2 * F * s.a, saves=[x], extra=s.e * INT32, weights=up_bytes, scratch=scratch,
        backward_scratch=backward_scratch,
    )  # fmt: skip
    half = rows * F * s.a
    h = t.op([up], half, saves=[up]) if s.static else _swiglu(t, up, half)
    scratch, backward_scratch = _quantized(s, rows, F, D)
    return t.op(
        [h], rows * s.row, saves=[h], weights=down_bytes, scratch=scratch, backward_scratch=backward_scratch
    )


def _quantized(s: Sizes, rows: int, k: int, n: int) -> tuple[int, int]:
    """Bytes of FP8 operands: of the forward, and of the backward beyond the weight gradient after them."""
    if s.config.toggles.fp8 == "off":
        return 0, 0
    copies = quantized(rows, k, n, s.e)
    return copies.forward, max(0, copies.backward - s.e * k * n * s.a)


def _swiglu(t: Tape, up: Value, half: int) -> Value:
    """silu(gate) * up, of gate and up side by side."""
    gate, value = t.split(up, [half, half])
    silu = t.op([gate], half, saves=[gate])
    return t.op([silu, value], half, saves=[silu, value])


def _loop(t: Tape, s: Sizes, x: Value, rows: int) -> Value:
    """The weight gradients of all experts are collected, stacked and accumulated."""
    D, F = s.model.hidden, s.model.expert_ffn
    pieces = min(PIECES, s.e)
    parts = t.split(x, [size * s.row for size in _shares(rows, pieces)])
    experts_of = _shares(s.e, pieces)
    ups = t.unbind([count * D * 2 * F * s.a for count in experts_of])
    downs = t.unbind([count * D * F * s.a for count in experts_of])
    outputs = []
    for part, size, up_w, down_w in zip(parts, _shares(rows, pieces), ups, downs, strict=True):
        up = t.op([part, up_w], size * 2 * F * s.a, saves=[part])
        h = _swiglu(t, up, size * F * s.a)
        outputs.append(t.op([h, down_w], size * s.row, saves=[h]))
    return t.op(outputs, rows * s.row, gradient="same")


def _shares(rows: int, parts: int) -> list[int]:
    ends = [rows * part // parts for part in range(parts + 1)]
    return [end - start for start, end in pairwise(ends)]

"""The routed experts: sequential, or as one grouped GEMM."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tracelens.planner.block.dense import swiglu
from tracelens.planner.block.op import Kernel, Value, Weight, moves
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
    inner = s.rows * F * s.a
    kernels = s.gemm(s.rows, D, 2 * F, s.e), moves(3 * inner, 5 * inner), s.gemm(s.rows, F, D, s.e)
    if s.config.toggles.experts == "grouped":
        return _grouped(t, s, x, rows, kernels)
    return _loop(t, s, x, rows, kernels)


def _grouped(t: Tape, s: Sizes, x: Value, rows: int, kernels: Sequence[Sequence[Kernel]]) -> Value:
    D, F = s.model.hidden, s.model.expert_ffn
    gate_up, activation, down = kernels
    up_bytes, down_bytes = s.e * D * 2 * F * s.a, s.e * D * F * s.a
    up = t.op(
        [x], rows * 2 * F * s.a, saves=[x], extra=s.e * INT32, weights=up_bytes, kernels=gate_up,
        weight=_WEIGHT,
    )  # fmt: skip
    half = rows * F * s.a
    h = t.op([up], half, saves=[up], kernels=activation) if s.static else _swiglu(t, up, half, activation)
    return t.op([h], rows * s.row, saves=[h], weights=down_bytes, kernels=down, weight=_WEIGHT)


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

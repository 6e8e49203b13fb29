"""What FP8 experts change: FLOPs that run at the FP8 rate, and the bytes of quantization.

The FLOPs stay those of `flops`; forward and input gradient of the experts run in FP8, the weight gradient in
the model's type.
"""

from __future__ import annotations

from typing import NamedTuple

from tracelens.planner.config import Config
from tracelens.planner.expected.flops import Work, flops
from tracelens.planner.expected.routed import Routing
from tracelens.planner.expected.share import FLOAT32

FP8 = 1
"""Bytes of an element."""


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


def fp8_flops(config: Config, rank: int, routing: Routing | None = None) -> dict[str, Work]:
    """FLOPs of `flops` that run in FP8, by scope; empty with fp8=off.

    Raises:
        TracelensError: no such rank, or the routing is needed but unknown.
    """
    if config.toggles.fp8 == "off":
        return {}
    by_scope = flops(config, rank, routing)
    return {
        # Of the backward's two GEMMs one is the input gradient.
        scope: work._replace(backward=work.backward // 2)
        for scope, work in by_scope.items()
        if scope.endswith(".experts")
    }

"""Costs of GEMMs: dense, fused with an epilogue, grouped."""

from tracelens.costs.gemm.dense import math_dtype, product
from tracelens.costs.gemm.fused import agree, sides, sizes, weighed

__all__ = ["agree", "math_dtype", "product", "sides", "sizes", "weighed"]

"""Costs of GEMMs: dense, fused with an epilogue, grouped."""

from tracelens.costs.gemm.dense import gemm_cost, math_dtype
from tracelens.costs.gemm.fused import agree, sides, sizes, weighed

__all__ = ["agree", "gemm_cost", "math_dtype", "sides", "sizes", "weighed"]

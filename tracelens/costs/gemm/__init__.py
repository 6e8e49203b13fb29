"""Costs of GEMMs: dense, fused with an epilogue, grouped."""

from tracelens.costs.gemm.dense import agree, gemm_cost, math_dtype, sizes
from tracelens.costs.gemm.fused import sides

__all__ = ["agree", "gemm_cost", "math_dtype", "sides", "sizes"]

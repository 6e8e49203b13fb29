"""Costs of ATen ops that move or map elements."""

from tracelens.costs.torch.pointwise import GELU, GELU_BACKWARD
from tracelens.costs.torch.tensors import dtype_argument

__all__ = ["GELU", "GELU_BACKWARD", "dtype_argument"]

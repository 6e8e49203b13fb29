"""Costs of ATen ops that move or map elements."""

from tracelens.costs.torch.pointwise import GELU, GELU_BACKWARD
from tracelens.costs.torch.tensors import asked_dtype

__all__ = ["GELU", "GELU_BACKWARD", "asked_dtype"]

"""Inputs of reproducer scripts: recorded arguments, and tensors made to fit them."""

from tracelens.reproducers.inputs.arguments import (
    OP,
    RECORDED,
    Argument,
    Tensor,
    Unreplayable,
    dense,
    read,
    tensors,
)
from tracelens.reproducers.inputs.indices import complete, grids
from tracelens.reproducers.inputs.makers import EVEN_GROUPS, fill
from tracelens.reproducers.inputs.opaque import callable_op, unreplayed
from tracelens.reproducers.inputs.scale import scaled

__all__ = [
    "EVEN_GROUPS",
    "OP",
    "RECORDED",
    "Argument",
    "Tensor",
    "Unreplayable",
    "callable_op",
    "complete",
    "dense",
    "fill",
    "grids",
    "read",
    "scaled",
    "tensors",
    "unreplayed",
]

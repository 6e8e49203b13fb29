"""Sizes scaled down, so that a call fits a smaller machine."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tracelens.reproducers.inputs.arguments import Argument, Tensor, tensors

SMALL = 64
"""Sizes up to this stay: heads, experts, kernels and groups, which have to fit each other."""

# The sizes of an image depend on each other through strides and padding; its batch does not.
_IMAGE = re.compile(r"conv|pool|upsample|group_norm|pixel|grid_sampl|unfold|im2col")


def scaled(op: str, arguments: Sequence[Argument], most: int) -> list[Argument]:
    """The arguments with sizes divided by the least power of two that leaves no tensor over `most` elements.

    Where small and dependent sizes leave more than that, all others are as small as they can be.

    Equal sizes stay equal, also where they are numbers among the arguments; what was dense stays dense, and
    overlaps and gaps stay in proportion.
    """
    all_tensors = tensors(arguments)
    sizes = (
        _batch(all_tensors)
        if _IMAGE.search(op)
        else {n for tensor in all_tensors for n in tensor.shape if n > SMALL}
    )
    divisor = 1
    while divisor < max(sizes, default=0) and _largest(all_tensors, sizes, divisor) > most:
        divisor *= 2
    return [_argument(tensor, sizes, divisor) for tensor in arguments] if divisor > 1 else list(arguments)


def _largest(all_tensors: Sequence[Tensor], sizes: set[int], divisor: int) -> int:
    return max(prod(_size(n, sizes, divisor) for n in tensor.shape) for tensor in all_tensors)


def _batch(all_tensors: Sequence[Tensor]) -> set[int]:
    """The first size of the image, if no weight has it too."""
    images = [tensor.shape for tensor in all_tensors if len(tensor.shape) > 2]
    if not images or any(images[0][0] in shape[1:] for shape in images):
        return set()
    return {images[0][0]}


def _size(n: int, sizes: set[int], divisor: int) -> int:
    if n not in sizes:
        return n
    # Kernels want rows of whole 16 bytes and tiles of 16.
    unit = 16 if n % 16 == 0 else 1
    return -(-n // (divisor * unit)) * unit


def _argument(argument: Argument, sizes: set[int], divisor: int) -> Argument:
    if isinstance(argument, Tensor):
        return _tensor(argument, sizes, divisor)
    if isinstance(argument, list):
        return [_argument(element, sizes, divisor) for element in argument]
    if isinstance(argument, int) and not isinstance(argument, bool):
        return _size(argument, sizes, divisor)
    return argument


def _tensor(tensor: Tensor, sizes: set[int], divisor: int) -> Tensor:
    shape = tuple(_size(n, sizes, divisor) for n in tensor.shape)
    stride, old_end, new_end = list(tensor.stride), 1, 1
    for dim in sorted(range(len(shape)), key=lambda dim: (tensor.stride[dim], tensor.shape[dim])):
        if stride[dim]:
            stride[dim] = max(1, tensor.stride[dim] * new_end // old_end)
            # A dimension without elements still has the stride of one with one.
            old_end, new_end = (
                tensor.stride[dim] * max(tensor.shape[dim], 1),
                stride[dim] * max(shape[dim], 1),
            )
    return replace(tensor, shape=shape, stride=tuple(stride))

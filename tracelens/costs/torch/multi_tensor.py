"""Multi-tensor kernels without recorded shapes: counted from their names and launch grids.

Of lists of more than 30 tensors the profiler records no shapes, and optimizer steps and `torch._foreach_*`
ops mostly work on longer ones. They run in `multi_tensor_apply_kernel<Metadata<...>, Functor<...>, ...>`,
where

- one thread block works on one chunk of up to 65,536 elements of one tensor in every list, and
- a launch takes up to 320 chunks of up to 110, 64, 48, 36, 30 tensors (1 to 5 lists), seven times that in the
  builds whose metadata are 32 KB large

(PyTorch, ATen/native/cuda/MultiTensorApply.cuh: kChunkSize, depth_to_max_blocks, depth_to_max_tensors; Apex
and TransformerEngine, multi_tensor_apply.cuh, called with chunks of 2048*32). The name tells the element
type and how many lists are read and written.

`blocks` full chunks are an upper bound of the elements, because the last chunk of a tensor is partly
filled. `blocks` less the greatest number of tensors are full for certain. Where that is less than half, as
in a launch of one-element tensors, nothing is counted.

The two factors of addcmul are taken as one tensor, the least that must move: optimizers square the gradient
with it.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from tracelens.costs.call import OpCall, Uncounted, size
from tracelens.costs.model import OpCost, cost
from tracelens.dtypes import known_dtype

ONE_FACTOR = "both factors assumed to be one tensor, as in Adam"
"""Assumption about addcmul."""

CHUNK = 65_536
"""Elements that one thread block works on, at most."""

_TENSORS = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30, 6: 24}
_BLOCKS = 320
_LARGE = 7

_INTEGERS = frozenset({"i32", "i64"})

_NAME = re.compile(r"multi_tensor_apply_kernel<")
_FUNCTOR = re.compile(r"(\w*Functor\w*)(?:<|$)")
_NOT_A_TYPE = re.compile(r"^(?:\w+::|\(anonymous namespace\)::|std::)+")

# Operations an element of what the functor classes do; 1 for the rest.
_OPERATIONS = {
    "FusedAdamMathFunctor": 15, "FusedSgdMathFunctor": 7, "FusedAdagradMathFunctor": 9, "AdamFunctor": 15,
    "AdamFunctorMaster": 15, "SGDFunctor": 7, "BinaryOpListAlphaFunctor": 2, "TernaryOpListFunctor": 3,
    "TernaryOpScalarFunctor": 3, "TernaryOpScalarListFunctor": 3, "PointwiseOpScalarFunctor": 3,
    "PointwiseOpScalarListFunctor": 3, "PointwiseOpScalarTensorFunctor": 3, "LpNormFunctor": 2,
    "L2NormFunctor": 2, "AxpbyFunctor": 3, "CopyFunctor": 0, "ZeroFunctor": 0,
}  # fmt: skip


class Functor(NamedTuple):
    """What a multi-tensor kernel does, read from its name.

    Attributes:
        name: of the functor class.
        lists: number of tensor lists.
        reads: element types of the lists that are read.
        writes: element types of the lists that are written.
        operations: an element.
        tensors: greatest number of tensors in one launch of up to 320 blocks.
        note: an assumption of these, or "".
    """

    name: str
    lists: int
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    operations: int
    tensors: int
    note: str = ""


@cost("kernel::*multi_tensor_apply_kernel*", engine="vector")
def multi_tensor(call: OpCall) -> OpCost:
    """Elements by blocks of 65,536, lists and element types by the functor in the kernel's name."""
    if call.blocks < 0:
        raise Uncounted("launch grid not recorded")
    kernel = functor(call.kernel)
    # More blocks than the small build ever launches are the large build, though its name may not say so.
    small = kernel.tensors == _TENSORS[kernel.lists]
    most = kernel.tensors * (_LARGE if small and call.blocks > _BLOCKS else 1)
    if 2 * (call.blocks - most) < call.blocks:
        raise Uncounted("launch grid too small to show the tensor sizes, which are not recorded")
    certain = 100 * (call.blocks - most) // call.blocks
    note = f"upper bound: full chunks of 65,536 elements, {certain}% of them certain"
    elements = call.blocks * CHUNK
    return OpCost(
        kernel.operations * elements,
        sum(size(elements, dtype) for dtype in kernel.reads),
        sum(size(elements, dtype) for dtype in kernel.writes),
        (kernel.reads or kernel.writes)[0],
        dims=(("elements", elements),),
        note=f"{note}; {kernel.note}" if kernel.note else note,
    )


@lru_cache(maxsize=1024)
def functor(kernel: str) -> Functor:
    """What the multi-tensor kernel of this name does.

    Raises:
        Uncounted: the name is none of a known multi-tensor kernel, or is cut off.
    """
    start = _NAME.search(kernel)
    outer = _arguments(kernel, start.end()) if start else []
    if len(outer) < 2:
        raise Uncounted("not a multi-tensor kernel by its name")
    lists = [int(word) for word in _inner(outer[0]) if word.isdigit()]
    if not lists or lists[0] not in _TENSORS:
        raise Uncounted("number of tensor lists not in the kernel's name")
    match = _FUNCTOR.search(outer[1])
    if match is None:
        raise Uncounted("functor not in the kernel's name")
    name, words = match[1], _inner(outer[1])
    types = [dtype for word in words if (dtype := known_dtype(_NOT_A_TYPE.sub("", word)))]
    numbers = [int(word) for word in words if word.isdigit()]
    if not types:
        raise Uncounted("element type not in the kernel's name")
    reads, writes = _access(name, lists[0], types, numbers)
    note = ""
    if name.startswith("Pointwise") and len(outer) > 2 and "multiplies" in outer[2]:
        reads, note = reads[:-1], ONE_FACTOR
    tensors = _TENSORS[lists[0]] * (_LARGE if "true" in _inner(outer[0]) else 1)
    return Functor(name, lists[0], reads, writes, _OPERATIONS.get(name, 1), tensors, note)


def _access(
    name: str, lists: int, types: list[str], numbers: list[int]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Element types of the lists that a functor reads and writes."""
    first, last = types[0], types[-1]
    if name in ("FusedAdamMathFunctor", "FusedSgdMathFunctor", "FusedAdagradMathFunctor"):
        return (first,) * lists, (first,) * (lists - 1)  # all but the gradients are written
    if name in ("AdamFunctor", "AdamFunctorMaster"):
        return _apex_adam(name, lists, [dtype for dtype in types if dtype not in _INTEGERS] or types)
    if name in ("LpNormFunctor", "LpMaxFunctor", "L2NormFunctor", "MaxNormFunctor"):
        return (first,), ()
    if name == "ZeroFunctor":
        return (), (first,)
    if name == "CopyFunctor":
        return (last,), (first,)
    if name == "ScaleFunctor":
        return (first,), (last,)
    if name == "AxpbyFunctor" and len(types) == 3:
        return (types[0], types[1]), (types[2],)
    if name == "SGDFunctor" and len(types) == 2 and lists < 4:
        return (first,) + (last,) * (lists - 1), (last,) * (lists - 1)
    if len(numbers) == 3 and numbers[0] == lists and "Op" in name:
        return (first,) * numbers[1], (first,)  # depth, lists read, place of the result
    raise Uncounted(f"unknown multi-tensor functor {name}")


def _apex_adam(name: str, lists: int, types: list[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Lists: gradient, parameter, two moments and, in the master form, the master copy that is updated."""
    param, full = types[0], types[-1]
    grad = types[1] if len(types) == 3 else param
    if name == "AdamFunctor" and lists == 4:
        return (grad, param, full, full), (param, full, full)
    if name == "AdamFunctorMaster" and lists == 5:
        return (grad, full, full, full), (param, full, full, full)
    raise Uncounted(f"unknown multi-tensor functor {name}")


def _inner(text: str) -> list[str]:
    """Template arguments of `Name<...>`."""
    start = text.find("<")
    return _arguments(text, start + 1) if start >= 0 else []


def _arguments(text: str, start: int) -> list[str]:
    """Template arguments from behind the opening bracket at `start - 1`; none where the text is cut off."""
    arguments: list[str] = []
    depth, begin = 0, start
    for position in range(start, len(text)):
        letter = text[position]
        if letter in "<(":
            depth += 1
        elif letter in ">)" and depth:
            depth -= 1
        elif letter == ">":
            return [*arguments, text[begin:position].strip()]
        elif letter == "," and not depth:
            arguments.append(text[begin:position].strip())
            begin = position + 1
    return []

"""`torch._foreach_*` with recorded shapes: one elementwise operation over lists of tensors.

Every list is read once and one list is written, the new one or, in place, the first. Copies and memsets do
not read the first list; norms and maxima write one number a tensor. Scalars cost nothing.
The two factors of addcmul are taken as one tensor where their shapes allow it (see below).
Operations an element: 1, with alpha (add, sub) 2, lerp, addcmul and addcdiv 3, norms 2, copies and memsets 0.

The profiler records no element type of a list; it is read from the kernel's name (see below, where
also counts lists too long for the profiler). Where the op falls back to one kernel a tensor, those belong to
ops of their own inside it.
"""

from __future__ import annotations

import re
from functools import lru_cache

from msgspec import Struct

from tracelens.costs.model import LONG_LIST, NO_SHAPES, OpCall, OpCost, Uncounted, cost, size
from tracelens.dtypes import known_dtype

_UNARY = (
    "abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor", "frac",
    "lgamma", "log", "log10", "log1p", "log2", "neg", "reciprocal", "round", "rsqrt", "sigmoid", "sign",
    "sin", "sinh", "sqrt", "tan", "tanh", "trunc",
)  # fmt: skip
_BINARY = ("add", "sub", "mul", "div", "pow", "maximum", "minimum", "clamp_max", "clamp_min")
_TERNARY = ("lerp", "addcmul", "addcdiv")
_FOREACH_OPERATIONS = {f"aten::_foreach_{name}{end}": 3 for name in _TERNARY for end in ("", "_")}

ONE_FACTOR = "both factors assumed to be one tensor, as in Adam"
"""Assumption about addcmul."""
CHUNK = 65_536
"""Elements that one thread block works on, at most."""
_MOST_TENSORS = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30, 6: 24}
_MOST_BLOCKS = 320
_LARGE_BUILD = 7
_INTEGERS = frozenset({"i32", "i64"})
_NAME = re.compile(r"multi_tensor_apply_kernel<")
_FUNCTOR = re.compile(r"(\w*Functor\w*)(?:<|$)")
_NOT_A_TYPE = re.compile(r"^(?:\w+::|\(anonymous namespace\)::|std::)+")
# Operations an element of what the functor classes do; 1 for the rest.
_FUNCTOR_OPERATIONS = {
    "FusedAdamMathFunctor": 15, "FusedSgdMathFunctor": 7, "FusedAdagradMathFunctor": 9, "AdamFunctor": 15,
    "AdamFunctorMaster": 15, "SGDFunctor": 7, "BinaryOpListAlphaFunctor": 2, "TernaryOpListFunctor": 3,
    "TernaryOpScalarFunctor": 3, "TernaryOpScalarListFunctor": 3, "PointwiseOpScalarFunctor": 3,
    "PointwiseOpScalarListFunctor": 3, "PointwiseOpScalarTensorFunctor": 3, "LpNormFunctor": 2,
    "L2NormFunctor": 2, "AxpbyFunctor": 3, "CopyFunctor": 0, "ZeroFunctor": 0,
}  # fmt: skip


class Functor(Struct, frozen=True):
    """What a multi-tensor kernel does, read from its name."""

    name: str  # of the functor class
    lists: int  # number of tensor lists
    reads: tuple[str, ...]  # element types of the lists that are read
    writes: tuple[str, ...]  # element types of the lists that are written
    operations: int  # an element
    tensors: int  # greatest number of tensors in one launch of up to 320 blocks
    note: str = ""  # an assumption of these, or ""


@cost(
    *(f"aten::_foreach_{name}{end}" for name in (*_UNARY, *_BINARY, *_TERNARY) for end in ("", "_")),
)
def foreach(call: OpCall) -> OpCost:
    """Every list read once, one written."""
    operations = _FOREACH_OPERATIONS.get(call.name, 1)
    if "_foreach_add" in call.name or "_foreach_sub" in call.name:
        operations = 2 if operations == 1 and call.text(2) not in ("", "1", "1.0") else operations
    lists = _list_elements(call)
    dtype = _list_dtype(call)
    note = ""
    if "addcmul" in call.name and len(lists) == 3 and call.shapes[1] == call.shapes[2]:
        lists, note = lists[:2], ONE_FACTOR
    read = sum(size(elements, dtype) for elements in lists)
    return _foreach_cost(operations, lists[0], read, size(lists[0], dtype), dtype, note)


@cost("aten::_amp_foreach_non_finite_check_and_unscale_")
def foreach_unscale(call: OpCall) -> OpCost:
    """Gradients checked and multiplied by one number in place."""
    elements = _list_elements(call)[0]
    dtype = _list_dtype(call)
    once = size(elements, dtype)
    return _foreach_cost(2, elements, once, once, dtype)


@cost("aten::_foreach_norm", "aten::_foreach_powsum", "aten::_foreach_max")
def foreach_norm(call: OpCall) -> OpCost:
    """The list read once, one number a tensor written."""
    elements, count = _list_elements(call)[0], len(call.shapes[0])
    dtype = _list_dtype(call)
    operations = 1 if call.name.endswith("max") else 2
    return _foreach_cost(operations, elements, size(elements, dtype), size(count, dtype), dtype)


@cost("aten::_foreach_zero_")
def foreach_zero(call: OpCall) -> OpCost:
    """The list written."""
    elements = _list_elements(call)[0]
    dtype = _list_dtype(call)
    return _foreach_cost(0, elements, 0, size(elements, dtype), dtype)


@cost("aten::_foreach_copy_", "aten::_foreach_clone")
def foreach_copy(call: OpCall) -> OpCost:
    """One list read, one written, which may differ in their element types."""
    elements = _list_elements(call)[0]
    kernel = functor(call.kernel)
    source, target = kernel.reads[:1] or kernel.writes[:1], kernel.writes[:1] or kernel.reads[:1]
    return _foreach_cost(0, elements, size(elements, source[0]), size(elements, target[0]), target[0])


def _foreach_cost(
    operations: int, elements: int, read: int, written: int, dtype: str, note: str = ""
) -> OpCost:
    return OpCost(operations * elements, read, written, dtype, dims=(("elements", elements),), note=note)


def _list_elements(call: OpCall) -> list[int]:
    """Elements of each list of tensors, in order."""
    if not call.shapes:
        raise Uncounted(NO_SHAPES)
    indices = [
        index
        for index, shapes in enumerate(call.shapes)
        if isinstance(shapes, list) and shapes and isinstance(shapes[0], list)
    ]
    if not indices:
        raise Uncounted(LONG_LIST)
    return [sum(tensor.numel for tensor in call.listed(index, "")) for index in indices]


def _list_dtype(call: OpCall) -> str:
    """Element type of the lists, by the kernel's name."""
    kernel = functor(call.kernel)
    return (kernel.reads or kernel.writes)[0]


# ====================
# Fused optimizer steps with recorded shapes: Adam, AdamW, SGD and Adagrad over lists of tensors.
#
# For each of P parameters
#
# - Adam and AdamW read parameter, gradient and two moments and write all but the gradient: 7 elements;
#   AMSGrad reads and writes a fifth list. 15 operations: weight decay 2, first moment 3, second moment 4,
#   denominator 3, update 3 (Kingma and Ba, "Adam"; Loshchilov and Hutter, "Decoupled weight decay
#   regularization").
# - SGD reads parameter and gradient and writes the parameter: 3 elements, 4 operations; with momentum 5
#   elements (4 in the first step, which only writes it) and 7 operations.
# - Adagrad reads parameter, gradient and sum and writes all but the gradient: 5 elements, 9 operations.
#
# A gradient scale makes the kernel write the unscaled gradients too. The profiler records no element type of
# a list; it is read from the kernel's name (see below, where also counts longer lists). Apex's and
# TransformerEngine's optimizers are no ops and show as kernels only.


@cost("aten::_fused_adam_", "aten::_fused_adamw_")
def adam(call: OpCall) -> OpCost:
    """Adam or AdamW step: 4 lists read, 3 written; AMSGrad one more of both."""
    lists = 5 if call.flag(11) else 4
    return _optimizer_step(call, lists, lists - 1 + call.has(13), 15 + (lists == 5))


@cost("aten::_fused_sgd_")
def sgd(call: OpCall) -> OpCost:
    """SGD step: 2 lists read, 1 written; momentum is one more of both, and not read in the first step."""
    momentum = call.text(4) not in ("", "0", "0.0", "0.")
    reads = 3 if momentum and not call.flag(9) else 2
    return _optimizer_step(call, reads, 1 + momentum + call.has(10), 7 if momentum else 4)


@cost("aten::_fused_adagrad_")
def adagrad(call: OpCall) -> OpCost:
    """Adagrad step: 3 lists read, 2 written."""
    return _optimizer_step(call, 3, 2 + call.has(9), 9)


def _optimizer_step(call: OpCall, reads: int, writes: int, operations: int) -> OpCost:
    """The cost of a step over list 0, whose elements are read and written so many times."""
    # The shapes first: "no shapes recorded" says more than an unknown kernel.
    elements = sum(tensor.numel for tensor in call.listed(0, ""))
    dtype = functor(call.kernel).reads[0]
    list_bytes = size(elements, dtype)
    return OpCost(
        operations * elements,
        reads * list_bytes,
        writes * list_bytes,
        dtype,
        dims=(("parameters", elements),),
    )


# ====================
# Multi-tensor kernels without recorded shapes: counted from their names and launch grids.
#
# Of lists of more than 30 tensors the profiler records no shapes, and optimizer steps and `torch._foreach_*`
# ops mostly work on longer ones. They run in `multi_tensor_apply_kernel<Metadata<...>, Functor<...>, ...>`,
# where
#
# - one thread block works on one chunk of up to 65,536 elements of one tensor in every list, and
# - a launch takes up to 320 chunks of up to 110, 64, 48, 36, 30 tensors (1 to 5 lists), seven times that in
#   the builds whose metadata are 32 KB large
#
# (PyTorch, ATen/native/cuda/MultiTensorApply.cuh: kChunkSize, depth_to_max_blocks, depth_to_max_tensors; Apex
# and TransformerEngine, multi_tensor_apply.cuh, called with chunks of 2048*32). The name tells the element
# type and how many lists are read and written.
#
# `blocks` full chunks are an upper bound of the elements, because the last chunk of a tensor is partly
# filled. `blocks` less the greatest number of tensors are full for certain. Where that is less than half, as
# in a launch of one-element tensors, nothing is counted.
#
# The two factors of addcmul are taken as one tensor, the least that must move: optimizers square the gradient
# with it.


@cost("kernel::*multi_tensor_apply_kernel*")
def multi_tensor(call: OpCall) -> OpCost:
    """Elements by blocks of 65,536, lists and element types by the functor in the kernel's name."""
    if call.blocks < 0:
        raise Uncounted("launch grid not recorded")
    kernel = functor(call.kernel)
    # More blocks than the small build ever launches are the large build, though its name may not say so.
    small = kernel.tensors == _MOST_TENSORS[kernel.lists]
    most = kernel.tensors * (_LARGE_BUILD if small and call.blocks > _MOST_BLOCKS else 1)
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
    if not lists or lists[0] not in _MOST_TENSORS:
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
    tensors = _MOST_TENSORS[lists[0]] * (_LARGE_BUILD if "true" in _inner(outer[0]) else 1)
    return Functor(
        name=name,
        lists=lists[0],
        reads=reads,
        writes=writes,
        operations=_FUNCTOR_OPERATIONS.get(name, 1),
        tensors=tensors,
        note=note,
    )


def _access(
    name: str, lists: int, types: list[str], numbers: list[int]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Element types of the lists that a functor reads and writes."""
    first, last = types[0], types[-1]
    if name in ("FusedAdamMathFunctor", "FusedSgdMathFunctor", "FusedAdagradMathFunctor"):
        return (first,) * lists, (first,) * (lists - 1)  # all but the gradients are written
    if (name, lists) in (("AdamFunctor", 4), ("AdamFunctorMaster", 5)):
        # Gradient, parameter, two moments and, in the master form, the master copy that is updated.
        floats = [dtype for dtype in types if dtype not in _INTEGERS] or types
        param, full = floats[0], floats[-1]
        grad = floats[1] if len(floats) == 3 else param
        if lists == 4:
            return (grad, param, full, full), (param, full, full)
        return (grad, full, full, full), (param, full, full, full)
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

"""`torch._foreach_*` with recorded shapes: one elementwise operation over lists of tensors.

Every list is read once and one list is written, the new one or, in place, the first. Copies and memsets do
not read the first list; norms and maxima write one number a tensor. Scalars cost nothing.
The two factors of addcmul are taken as one tensor where their shapes allow it (see multi_tensor.py).
Operations an element: 1, with alpha (add, sub) 2, lerp, addcmul and addcdiv 3, norms 2, copies and memsets 0.

The profiler records no element type of a list; it is read from the kernel's name (see multi_tensor.py, which
also counts lists too long for the profiler). Where the op falls back to one kernel a tensor, those belong to
ops of their own inside it.
"""

from __future__ import annotations

from tracelens.costs.call import LONG_LIST, NO_SHAPES, OpCall, Uncounted, size
from tracelens.costs.model import OpCost, cost
from tracelens.costs.torch.multi_tensor import ONE_FACTOR, functor

_UNARY = (
    "abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor", "frac",
    "lgamma", "log", "log10", "log1p", "log2", "neg", "reciprocal", "round", "rsqrt", "sigmoid", "sign",
    "sin", "sinh", "sqrt", "tan", "tanh", "trunc",
)  # fmt: skip
_BINARY = ("add", "sub", "mul", "div", "pow", "maximum", "minimum", "clamp_max", "clamp_min")
_TERNARY = ("lerp", "addcmul", "addcdiv")

_OPERATIONS = {f"aten::_foreach_{name}{end}": 3 for name in _TERNARY for end in ("", "_")}


def _names(*names: str) -> tuple[str, ...]:
    """The op names of operations, out of place and in place."""
    return tuple(f"aten::_foreach_{name}{end}" for name in names for end in ("", "_"))


@cost(*_names(*_UNARY, *_BINARY, *_TERNARY), engine="vector")
def elementwise(call: OpCall) -> OpCost:
    """Every list read once, one written."""
    operations = _OPERATIONS.get(call.name, 1)
    if "_foreach_add" in call.name or "_foreach_sub" in call.name:
        operations = 2 if operations == 1 and call.text(2) not in ("", "1", "1.0") else operations
    lists = _lists(call)
    dtype = _dtype(call)
    note = ""
    if "addcmul" in call.name and len(lists) == 3 and call.shapes[1] == call.shapes[2]:
        lists, note = lists[:2], ONE_FACTOR
    read = sum(size(elements, dtype) for elements in lists)
    return _cost(operations, lists[0], read, size(lists[0], dtype), dtype, note)


@cost("aten::_amp_foreach_non_finite_check_and_unscale_", engine="vector")
def unscale(call: OpCall) -> OpCost:
    """Gradients checked and multiplied by one number in place."""
    elements = _lists(call)[0]
    dtype = _dtype(call)
    once = size(elements, dtype)
    return _cost(2, elements, once, once, dtype)


@cost("aten::_foreach_norm", "aten::_foreach_powsum", "aten::_foreach_max", engine="vector")
def norm(call: OpCall) -> OpCost:
    """The list read once, one number a tensor written."""
    elements, count = _lists(call)[0], len(call.shapes[0])
    dtype = _dtype(call)
    operations = 1 if call.name.endswith("max") else 2
    return _cost(operations, elements, size(elements, dtype), size(count, dtype), dtype)


@cost("aten::_foreach_zero_", engine="vector")
def zero(call: OpCall) -> OpCost:
    """The list written."""
    elements = _lists(call)[0]
    dtype = _dtype(call)
    return _cost(0, elements, 0, size(elements, dtype), dtype)


@cost("aten::_foreach_copy_", "aten::_foreach_clone", engine="vector")
def copy(call: OpCall) -> OpCost:
    """One list read, one written, which may differ in their element types."""
    elements = _lists(call)[0]
    kernel = functor(call.kernel)
    source, target = kernel.reads[:1] or kernel.writes[:1], kernel.writes[:1] or kernel.reads[:1]
    return _cost(0, elements, size(elements, source[0]), size(elements, target[0]), target[0])


def _cost(operations: int, elements: int, read: int, written: int, dtype: str, note: str = "") -> OpCost:
    return OpCost(operations * elements, read, written, dtype, dims=(("elements", elements),), note=note)


def _lists(call: OpCall) -> list[int]:
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


def _dtype(call: OpCall) -> str:
    """Element type of the lists, by the kernel's name."""
    kernel = functor(call.kernel)
    return (kernel.reads or kernel.writes)[0]

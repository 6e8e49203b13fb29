"""Elementwise ops: every result element comes from the elements at the same place of the operands.

Read is every operand as it lies in memory (broadcast or expanded elements once), written is the result in
the shape that the operands broadcast to. An op in place (`add_`) reads and writes its first argument. The
profiler records an out variant under the plain name, with the given result as one more tensor behind the op's
own arguments: a tensor where the op has no operand is a result, written and not read, of its own type.
"""

from __future__ import annotations

from math import prod

from tracelens.costs.call import OpCall, Tensor, Uncounted, size
from tracelens.costs.model import OpCost, cost
from tracelens.costs.torch.pointwise import GELU, GELU_BACKWARD, Rule, rules
from tracelens.costs.torch.tensors import (
    axis,
    broadcast,
    complex_of,
    floating,
    length,
    promote,
    real_of,
    recorded,
    result_dtype,
    summed,
)

_RULES = dict(rules())

_GELU = {name: Rule(operations) for name, operations in GELU.items()}
_GELU_BACKWARD = {name: Rule(operations, (0, 1)) for name, operations in GELU_BACKWARD.items()}
_DIVISION, _ROUNDED = Rule(1, (0, 1), "float"), Rule(2, (0, 1))


_NO_NUMBERS = frozenset({"", "None", "True", "False"})


# Python's floats are recorded as 0-dim doubles, and make fp32 of integers where a tensor would make fp64.
_NUMBER = "a 0-dim double counted as a Python number"

# Four products and two sums; other operations are done on both parts.
_COMPLEX_PRODUCT = 6


def pointwise(call: OpCall, rule: Rule) -> OpCost:
    """The cost of an elementwise op by its rule."""
    recorded(call)
    dtypes, indices = call.dtypes, rule.operands
    operands: list[Tensor] = []
    out_dtype = ""
    for index, dtype in enumerate(dtypes):
        if dtype and index in indices:
            operands.append(call.tensor(index))
        elif dtype:
            out_dtype = out_dtype or dtype
    if not operands:
        raise Uncounted("no tensor among its recorded arguments")
    work = promote(operands)
    shape = broadcast([operand.shape for operand in operands])
    numel = prod(shape)
    read = sum([operand.bytes for operand in operands])
    if in_place(call.name):
        if shape != operands[0].shape:
            raise Uncounted("recorded shapes do not broadcast to the in-place operand")
        written = operands[0].bytes
    else:
        written = size(numel, out_dtype or _result(call, rule, operands, work)) * rule.results
    operations = rule.operations
    if rule.factor >= 0 and call.text(rule.factor) not in ("", "1", "1.0", "1."):
        operations += 1
    if work[0] == "c":
        operations *= _COMPLEX_PRODUCT if "mul" in call.name else 2
        work = real_of(work)
    note = _NUMBER if work == "fp32" and "fp64" in dtypes and not out_dtype and _no_fp32(operands) else ""
    return OpCost(numel * operations, read, written, work, note=note)


def _no_fp32(operands: list[Tensor]) -> bool:
    return all(operand.dtype != "fp32" for operand in operands)


def in_place(name: str) -> bool:
    """Whether an op of this name writes its first argument."""
    return name[-1] == "_" and (name[-2:] != "__" or name.startswith("aten::__i"))


def _result(call: OpCall, rule: Rule, operands: list[Tensor], work: str) -> str:
    """Element type of the result."""
    kind = rule.result
    if kind == "same":
        return _with_numbers(call, rule, work)
    if kind == "float":
        return floating(work)
    if kind == "first":
        return operands[0].dtype
    if kind == "real":
        return real_of(work)
    if kind == "complex":
        return complex_of(work)
    if kind == "chosen":
        return _with_numbers(call, rule, promote(operands[1:]) if len(operands) > 1 else "bool")
    return kind


def _with_numbers(call: OpCall, rule: Rule, work: str) -> str:
    """The result type where a number is of a higher category than the tensors (integers * 0.5)."""
    if floating(work) == work:
        return work
    numbers = [call.text(index) for index in rule.operands if not call.has(index)]
    numbers = [text for text in numbers if text not in _NO_NUMBERS]
    if any(not text.lstrip("-").isdigit() for text in numbers):
        return floating(work)
    return summed(work) if numbers and work == "bool" else work


@cost(*_RULES, *(f"{name}_" for name in _RULES if not name.endswith("_")), engine="vector")
def elementwise(call: OpCall) -> OpCost:
    """Operations an element by the op's formula; every operand read, the result written."""
    name = call.name
    rule = _RULES.get(name)
    return pointwise(call, rule if rule else _RULES[name[:-1]])


@cost(
    "aten::div", "aten::div_", "aten::divide", "aten::divide_", "aten::true_divide", "aten::true_divide_",
    engine="vector",
)  # fmt: skip
def divide(call: OpCall) -> OpCost:
    """One division an element, and one rounding where asked for; integers give fractions unless rounded.

    Profilers leave out the rounding mode's name; that there is such an argument tells that one was asked for.
    """
    rounded = len(call.shapes) > 2 and not call.has(2)
    return pointwise(call, _ROUNDED if rounded else _DIVISION)


@cost("aten::gelu", "aten::gelu_", engine="vector")
def gelu(call: OpCall) -> OpCost:
    """5 operations an element with the error function, 9 in the tanh form."""
    return pointwise(call, _GELU[_approximation(call, 1)])


@cost("aten::gelu_backward", engine="vector")
def gelu_backward(call: OpCall) -> OpCost:
    """11 operations an element with the error function, 18 in the tanh form."""
    return pointwise(call, _GELU_BACKWARD[_approximation(call, 2)])


def _approximation(call: OpCall, index: int) -> str:
    """Which GELU: by argument, else (profilers leave texts out) by the kernel's lambda; "none" by default.

    PyTorch's kernel function has two, the first for the tanh form (ActivationGeluKernel.cu).
    """
    _, _, after = call.kernel.partition("GeluType)::")
    first = after.startswith(("{lambda()#1}", "[lambda() (instance 1)]"))
    return "tanh" if call.text(index) == "tanh" or first else "none"


@cost("aten::frexp", engine="vector")
def frexp(call: OpCall) -> OpCost:
    """Mantissas in the type of x and exponents in i32."""
    x = call.tensor(0)
    return OpCost(x.numel, x.bytes, x.dense_bytes + size(x.numel, "i32"), x.dtype)


@cost("aten::glu", engine="vector")
def glu(call: OpCall) -> OpCost:
    """The product a · sigmoid(b) of the two halves of x: 5 operations an element, half as many as x has."""
    x = call.tensor(0)
    if length(x, axis(call, 1, x, -1)) % 2:
        raise Uncounted("the dimension to halve has an odd size")
    half = x.numel // 2
    return OpCost(5 * half, x.bytes, size(half, result_dtype(call, 1) or x.dtype), x.dtype)


@cost("aten::glu_backward", engine="vector")
def glu_backward(call: OpCall) -> OpCost:
    """From s = sigmoid(b): g·s and g·a·s·(1 - s), 9 operations an element of g; as large as x."""
    gradient, x = call.tensor(0), call.tensor(1)
    written = x.dense_bytes
    return OpCost(9 * gradient.numel, gradient.bytes + x.bytes, written, x.dtype)


@cost("aten::addr", "aten::addr_", engine="vector")
def outer(call: OpCall) -> OpCost:
    """An outer product added, x + a·bᵀ: a multiplication and an addition an element."""
    x, a, b = call.tensor(0), call.tensor(1), call.tensor(2)
    numel = a.numel * b.numel
    work = promote([x, a, b])
    return OpCost(2 * numel, x.bytes + a.bytes + b.bytes, size(numel, work), work)

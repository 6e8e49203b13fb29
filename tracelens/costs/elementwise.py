"""Elementwise ops: every result element comes from the elements at the same place of the operands.

Read is every operand as it lies in memory (broadcast or expanded elements once), written is the result in
the shape that the operands broadcast to. An op in place (`add_`) reads and writes its first argument. The
profiler records an out variant under the plain name, with the given result as one more tensor behind the op's
own arguments: a tensor where the op has no operand is a result, written and not read, of its own type.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Literal

from msgspec import Struct

from tracelens.costs.model import OpCall, OpCost, Tensor, Uncounted, cost, size
from tracelens.costs.movement import upper
from tracelens.costs.tensors import (
    axis,
    broadcast,
    complex_of,
    floating,
    length,
    natural,
    outputs,
    promote,
    real_of,
    recorded,
    result_dtype,
    summed,
)

Result = Literal["same", "float", "bool", "first", "real", "complex", "fp64", "chosen"]


# ====================
# Table of elementwise ops: operations an element, where the operands are, type of the result.
#
# Operations are those of the textbook formula: an addition, multiplication, division, comparison, bit
# operation or library function (exponential, root, error function) is one. Choosing or moving values is none.


class ElementwiseRule(Struct, frozen=True):
    """How an elementwise op is counted."""

    operations: int  # per element of the result
    # indices of the arguments that may be tensors to read; tensors elsewhere are results
    operands: tuple[int, ...] = (0,)
    # element type of the result: that of the operands together ("same", "float": at least a fractional one),
    # of the first operand, of the real part, of the complex number they make, or of all but the first
    # ("chosen")
    result: Result = "same"
    factor: int = -1  # place of a scalar that multiplies and costs nothing when it is 1, or -1
    results: int = 1  # number of results of this type


_ONE, _TWO, _THREE = (0,), (0, 1), (0, 1, 2)
# (operations, operands, result, names)
_TABLE: tuple[tuple[int, tuple[int, ...], Result, str], ...] = (
    (0, _ONE, "same", "positive resolve_conj resolve_neg"),
    (0, _THREE, "first", "masked_fill"),
    (0, _THREE, "chosen", "where"),
    (1, _ONE, "same", "neg negative sign sgn ceil floor trunc fix round square bitwise_not conj_physical"
     " _conj_physical"),
    (1, _ONE, "real", "abs absolute"),
    (1, _ONE, "bool", "isnan isinf isfinite isneginf isposinf signbit logical_not"),
    (1, _ONE, "float", "angle exp exp2 expm1 log log10 log1p log2 sqrt rsqrt reciprocal sin cos tan sinh cosh"
     " tanh asin acos atan asinh acosh atanh arcsin arccos arctan arcsinh arccosh arctanh erf erfc erfinv"
     " lgamma mvlgamma digamma i0 deg2rad rad2deg special_airy_ai special_bessel_j0 special_bessel_j1"
     " special_bessel_y0 special_bessel_y1 special_erfcx special_i0e special_i1 special_i1e special_log_ndtr"
     " special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0"
     " special_modified_bessel_k1 special_ndtri special_scaled_modified_bessel_k0"
     " special_scaled_modified_bessel_k1 special_spherical_bessel_j0"),
    (1, (1,), "float", "polygamma special_polygamma"),
    (2, _ONE, "same", "frac"),
    (3, _ONE, "same", "nan_to_num"),
    (3, _ONE, "float", "sinc logit special_entr"),
    (1, _TWO, "same", "mul multiply maximum minimum fmax fmin clamp_min clamp_max remainder fmod floor_divide"
     " bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift gcd lcm nextafter pow"
     " heaviside __and__ __or__ __xor__ __lshift__ __rshift__"),
    (1, _TWO, "first", "__iand__ __ior__ __ixor__ __ilshift__ __irshift__"),
    (1, _TWO, "float", "atan2 arctan2 copysign igamma igammac special_zeta special_chebyshev_polynomial_t"
     " special_chebyshev_polynomial_u special_chebyshev_polynomial_v special_chebyshev_polynomial_w"
     " special_hermite_polynomial_h special_hermite_polynomial_he special_laguerre_polynomial_l"
     " special_legendre_polynomial_p special_shifted_chebyshev_polynomial_t"
     " special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_v"
     " special_shifted_chebyshev_polynomial_w"),
    (1, _TWO, "fp64", "float_power"),
    (1, _TWO, "bool", "eq ne lt le gt ge greater greater_equal less less_equal not_equal"
     " logical_and logical_or logical_xor"),
    (2, _THREE, "same", "clamp clip"),
    (2, _TWO, "float", "xlogy special_xlog1py ldexp"),
    (4, _TWO, "float", "hypot"),
    (5, _TWO, "float", "logaddexp logaddexp2"),
    (0, _TWO, "complex", "complex"),
    (4, _TWO, "complex", "polar"),
    (3, _THREE, "same", "lerp"),
    # Activations.
    (1, _ONE, "same", "relu threshold hardshrink"),
    (2, _ONE, "same", "relu6 hardtanh leaky_relu softshrink rrelu"),
    (2, _TWO, "same", "prelu _prelu_kernel"),
    (3, _ONE, "same", "elu"),
    (4, _ONE, "float", "sigmoid special_expit"),
    (4, _ONE, "same", "celu selu mish softplus hardsigmoid"),
    (5, _ONE, "same", "silu hardswish"),
    (6, _ONE, "same", "log_sigmoid log_sigmoid_forward"),
    # Their gradients.
    (1, _TWO, "same", "threshold_backward hardshrink_backward softshrink_backward"),
    (2, _TWO, "same", "hardtanh_backward leaky_relu_backward native_dropout_backward _masked_scale"),
    (3, _TWO, "same", "sigmoid_backward tanh_backward hardsigmoid_backward logit_backward"),
    (3, _THREE, "same", "rrelu_with_noise_backward"),
    (4, (0, 5), "same", "elu_backward"),
    (5, _TWO, "same", "hardswish_backward softplus_backward"),
    (6, _TWO, "same", "log_sigmoid_backward"),
    (9, _TWO, "same", "silu_backward"),
    (13, _TWO, "same", "mish_backward"),
)  # fmt: skip
# Whose factor alpha (add, sub) or value is an argument: it costs a multiplication when it is not 1.
_WITH_FACTOR: tuple[tuple[int, tuple[int, ...], int, str], ...] = (
    (1, _TWO, 2, "add sub rsub subtract"),
    (2, _THREE, 3, "addcmul addcdiv"),
)


def rules() -> Iterator[tuple[str, ElementwiseRule]]:
    """All (op name, rule), in-place ops without their underscore."""
    for operations, operands, result, names in _TABLE:
        for name in names.split():
            yield f"aten::{name}", ElementwiseRule(operations, operands, result)
    for operations, operands, factor, names in _WITH_FACTOR:
        for name in names.split():
            yield f"aten::{name}", ElementwiseRule(operations, operands, "same", factor)
    yield "aten::_prelu_kernel_backward", ElementwiseRule(3, _THREE, results=2)
    yield "aten::rrelu_with_noise", ElementwiseRule(2, _ONE, results=2)


_RULES = dict(rules())

SILU = 5
"""x·σ(x), as in the table."""
GELU = {"none": 5, "tanh": 9}
"""x·½·(1 + erf(x/√2)), and ½·x·(1 + tanh(β·(x + κ·x³))): Hendrycks and Gimpel,
"Gaussian Error Linear Units"."""

_GELU = {name: ElementwiseRule(operations) for name, operations in GELU.items()}

GELU_BACKWARD = {"none": 11, "tanh": 18}
"""g·(Φ(x) + x·φ(x)), and the derivative of the tanh form."""

_GELU_BACKWARD = {name: ElementwiseRule(operations, (0, 1)) for name, operations in GELU_BACKWARD.items()}
_DIVISION, _ROUNDED = ElementwiseRule(1, (0, 1), "float"), ElementwiseRule(2, (0, 1))

_NO_TENSOR = "no tensor among its recorded arguments"
_NO_NUMBERS = frozenset({"", "None", "True", "False"})

# Python's floats are recorded as 0-dim doubles, and make fp32 of integers where a tensor would make fp64.
_NUMBER = "a 0-dim double counted as a Python number"
# Four products and two sums; other operations are done on both parts.
_COMPLEX_PRODUCT = 6

# Operations a number: the draw, and what follows it. A normal one is a radius and a cosine (Box and Muller).
_DRAWS = {
    "aten::random_": 2,
    "aten::uniform_": 3,
    "aten::bernoulli_": 2,
    "aten::exponential_": 3,
    "aten::geometric_": 4,
    "aten::cauchy_": 4,
    "aten::normal_": 6,
    "aten::log_normal_": 7,
}


def pointwise(call: OpCall, rule: ElementwiseRule) -> OpCost:
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
        raise Uncounted(_NO_TENSOR)
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
    is_number = work == "fp32" and "fp64" in dtypes and not out_dtype
    note = _NUMBER if is_number and all(operand.dtype != "fp32" for operand in operands) else ""
    return OpCost(numel * operations, read, written, work, note=note)


def in_place(name: str) -> bool:
    """Whether an op of this name writes its first argument."""
    return name[-1] == "_" and (name[-2:] != "__" or name.startswith("aten::__i"))


def _result(call: OpCall, rule: ElementwiseRule, operands: list[Tensor], work: str) -> str:
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


def _with_numbers(call: OpCall, rule: ElementwiseRule, work: str) -> str:
    """The result type where a number is of a higher category than the tensors (integers * 0.5)."""
    if floating(work) == work:
        return work
    numbers = [call.text(index) for index in rule.operands if not call.has(index)]
    numbers = [text for text in numbers if text not in _NO_NUMBERS]
    if any(not text.lstrip("-").isdigit() for text in numbers):
        return floating(work)
    return summed(work) if numbers and work == "bool" else work


@cost(*_RULES, *(f"{name}_" for name in _RULES if not name.endswith("_")))
def elementwise(call: OpCall) -> OpCost:
    """Operations an element by the op's formula; every operand read, the result written."""
    name = call.name
    rule = _RULES.get(name)
    return pointwise(call, rule if rule else _RULES[name[:-1]])


@cost(
    "aten::div", "aten::div_", "aten::divide", "aten::divide_", "aten::true_divide", "aten::true_divide_",
)  # fmt: skip
def divide(call: OpCall) -> OpCost:
    """One division an element, and one rounding where asked for; integers give fractions unless rounded.

    Profilers leave out the rounding mode's name; that there is such an argument tells that one was asked for.
    """
    rounded = len(call.shapes) > 2 and not call.has(2)
    return pointwise(call, _ROUNDED if rounded else _DIVISION)


@cost("aten::gelu", "aten::gelu_")
def gelu(call: OpCall) -> OpCost:
    """5 operations an element with the error function, 9 in the tanh form."""
    return pointwise(call, _GELU[_approximation(call, 1)])


@cost("aten::gelu_backward")
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


@cost("aten::frexp")
def frexp(call: OpCall) -> OpCost:
    """Mantissas in the type of x and exponents in i32."""
    x = call.tensor(0)
    return OpCost(x.numel, x.bytes, x.dense_bytes + size(x.numel, "i32"), x.dtype)


@cost("aten::glu")
def glu(call: OpCall) -> OpCost:
    """The product a · sigmoid(b) of the two halves of x: 5 operations an element, half as many as x has."""
    x = call.tensor(0)
    if length(x, axis(call, 1, x, -1)) % 2:
        raise Uncounted("the dimension to halve has an odd size")
    half = x.numel // 2
    return OpCost(5 * half, x.bytes, size(half, result_dtype(call, 1) or x.dtype), x.dtype)


@cost("aten::glu_backward")
def glu_backward(call: OpCall) -> OpCost:
    """From s = sigmoid(b): g·s and g·a·s·(1 - s), 9 operations an element of g; as large as x."""
    gradient, x = call.tensor(0), call.tensor(1)
    return OpCost(9 * gradient.numel, gradient.bytes + x.bytes, x.dense_bytes, x.dtype)


@cost("aten::addr", "aten::addr_")
def outer(call: OpCall) -> OpCost:
    """An outer product added, x + a·bᵀ: a multiplication and an addition an element."""
    x, a, b = call.tensor(0), call.tensor(1), call.tensor(2)
    numel = a.numel * b.numel
    work = promote([x, a, b])
    return OpCost(2 * numel, x.bytes + a.bytes + b.bytes, size(numel, work), work)


# ====================
# Random numbers, dropout, and ranges.
#
# A random number is one operation, as is every step of making the wanted distribution of it.


@cost(*_DRAWS)
def draw(call: OpCall) -> OpCost:
    """Random numbers written over a tensor that is not read; a tensor of probabilities is."""
    target = call.tensor(0)
    return OpCost(_DRAWS[call.name] * target.numel, call.bytes(1), target.bytes, target.dtype)


@cost("aten::bernoulli", "aten::poisson", "aten::_standard_gamma", "aten::binomial")
def sample(call: OpCall) -> OpCost:
    """A random number for each parameter (read) and a comparison with it."""
    parameters = call.tensor(0)
    more = call.tensor(1).bytes if call.name == "aten::binomial" else 0
    written = parameters.dense_bytes
    return OpCost(2 * parameters.numel, parameters.bytes + more, written, parameters.dtype)


@cost("aten::normal")
def normal(call: OpCall) -> OpCost:
    """Normal numbers with means or deviations from tensors: 6 operations each."""
    tensors = [call.tensor(index) for index in (0, 1) if call.has(index)]
    if not tensors:
        raise Uncounted(_NO_TENSOR)
    numel = max(tensor.numel for tensor in tensors)
    read = sum(tensor.bytes for tensor in tensors)
    return OpCost(6 * numel, read, size(numel, tensors[0].dtype), tensors[0].dtype)


@cost("aten::multinomial")
def multinomial(call: OpCall) -> OpCost:
    """Positions drawn by weight: weights summed up and drawn from; the positions (i64) written."""
    weights, count = call.tensor(0), natural(call, 1)
    rows = weights.shape[0] if len(weights.shape) > 1 else 1
    return OpCost(2 * weights.numel, weights.bytes, size(rows * count, "i64"), weights.dtype)


@cost("aten::native_dropout", "aten::_fused_dropout")
def dropout(call: OpCall) -> OpCost:
    """A draw, a comparison and two multiplications an element; result and mask (one byte each) written."""
    x = call.tensor(0)
    if call.text(2) == "False":  # not training: a copy and a mask of ones
        return OpCost(0, x.bytes, x.dense_bytes + x.numel, x.dtype)
    return OpCost(4 * x.numel, x.bytes, x.dense_bytes + x.numel, x.dtype)


@cost("aten::randperm")
def permutation(call: OpCall) -> OpCost:
    """The numbers below n in random order: a draw for each, and n·⌈log₂ n⌉ comparisons to sort by it."""
    count = natural(call, 0)
    dtype = result_dtype(call, 1) or "i64"
    steps = (count - 1).bit_length() if count else 0
    return OpCost(count * (1 + steps), 0, size(count, dtype), dtype)


@cost("aten::arange", "aten::range")
def arange(call: OpCall) -> OpCost:
    """A multiplication and an addition for each number of a range."""
    out = outputs(call, 0)
    dtype = out[0].dtype if out else "fp32" if any("." in text for text in call.values[:3]) else "i64"
    count = out[0].numel if out and out[0].numel else _steps(call)
    return OpCost(2 * count, 0, size(count, dtype), dtype)


@cost("aten::linspace", "aten::logspace")
def linspace(call: OpCall) -> OpCost:
    """A multiplication and an addition for each of so many numbers between two, for logspace a power too."""
    out = outputs(call, 0)
    dtype = out[-1].dtype if out else "fp32"
    count = natural(call, 2)
    return OpCost((2 if call.name == "aten::linspace" else 3) * count, 0, size(count, dtype), dtype)


@cost("aten::eye")
def eye(call: OpCall) -> OpCost:
    """A matrix of zeros and a diagonal of ones."""
    rows = natural(call, 0)
    columns = natural(call, 1, rows)
    dtype = result_dtype(call, 0) or "fp32"
    return OpCost(0, 0, size(rows * columns, dtype), dtype)


@cost("aten::tril_indices", "aten::triu_indices")
def triangle_indices(call: OpCall) -> OpCost:
    """Row and column (i64) of every element of a triangle of a matrix."""
    rows, columns, diagonal = natural(call, 0), natural(call, 1), call.integer(2, 0)
    count = upper(rows, columns, diagonal if "triu" in call.name else diagonal + 1)
    if "tril" in call.name:
        count = rows * columns - count
    return OpCost(2 * count, 0, size(2 * count, "i64"), "i64")


def _steps(call: OpCall) -> int:
    """Numbers in arange(end), arange(start, end) or arange(start, end, step), whichever is recorded."""
    numbers = []
    for text in call.values[:3]:
        try:
            numbers.append(float(text))
        except ValueError:
            break
    if not numbers:
        raise Uncounted("start and end of the range have no recorded value")
    start, end = (0.0, numbers[0]) if len(numbers) == 1 else (numbers[0], numbers[1])
    step = numbers[2] if len(numbers) > 2 else 1.0
    span = (end - start) / step if step else -1.0
    if not 0 <= span < float(1 << 53):
        raise Uncounted("a range without an end")
    full_steps = int(span)
    return full_steps + (span > full_steps) + (call.name == "aten::range")

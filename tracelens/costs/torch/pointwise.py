"""Table of elementwise ops: operations an element, where the operands are, type of the result.

Operations are those of the textbook formula: an addition, multiplication, division, comparison, bit operation
or library function (exponential, root, error function) is one. Choosing or moving values is none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

Result = Literal["same", "float", "bool", "first", "real", "complex", "fp64", "chosen"]


class Rule(NamedTuple):
    """How an elementwise op is counted.

    Attributes:
        operations: per element of the result.
        operands: indices of the arguments that may be tensors to read; tensors elsewhere are results.
        result: element type of the result: that of the operands together ("same", "float": at least a
            fractional one), of the first operand, of the real part, of the complex number they make, or of
            all but the first ("chosen").
        factor: place of a scalar that multiplies and costs nothing when it is 1, or -1.
        results: number of results of this type.
    """

    operations: int
    operands: tuple[int, ...] = (0,)
    result: Result = "same"
    factor: int = -1
    results: int = 1


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

GELU = {"none": 5, "tanh": 9}
"""x·½·(1 + erf(x/√2)), and ½·x·(1 + tanh(β·(x + κ·x³))): Hendrycks and Gimpel,
"Gaussian Error Linear Units"."""

GELU_BACKWARD = {"none": 11, "tanh": 18}
"""g·(Φ(x) + x·φ(x)), and the derivative of the tanh form."""


def rules() -> Iterator[tuple[str, Rule]]:
    """All (op name, rule), in-place ops without their underscore."""
    for operations, operands, result, names in _TABLE:
        for name in names.split():
            yield f"aten::{name}", Rule(operations, operands, result)
    for operations, operands, factor, names in _WITH_FACTOR:
        for name in names.split():
            yield f"aten::{name}", Rule(operations, operands, "same", factor)
    yield "aten::_prelu_kernel_backward", Rule(3, _THREE, results=2)
    yield "aten::rrelu_with_noise", Rule(2, _ONE, results=2)

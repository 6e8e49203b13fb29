"""Fused gated activations of the libraries."""

import pytest

from tests.costs.recorded import costed, recorded
from tracelens.costs import Uncounted


@pytest.mark.parametrize("name", ["_C::silu_and_mul", "sgl_kernel::silu_and_mul", "aiter::silu_and_mul"])
@pytest.mark.parametrize("order", [1, -1])
def test_two_tensors_in_either_order(name: str, order: int) -> None:
    cost = costed(name, *("bf16 512 1408", "bf16 512 2816")[::order])
    count = 512 * 1408
    # sigmoid 4, two products
    assert (cost.flops, cost.read_bytes, cost.write_bytes) == (6 * count, 2 * 2 * count, 2 * count)


def test_other_activations() -> None:
    assert costed("_C::gelu_and_mul", "bf16 1 4", "bf16 1 8").flops == 6 * 4
    assert costed("_C::gelu_tanh_and_mul", "bf16 1 4", "bf16 1 8").flops == 10 * 4
    assert costed("_C::fatrelu_and_mul", "bf16 1 4", "bf16 1 8", 0.1).flops == 2 * 4


def test_a_quantized_result_and_its_scale() -> None:
    cost = costed("_C::silu_and_mul_quant", "fp8e4m3 4 8", "bf16 4 16", "fp32 1")
    assert (cost.read_bytes, cost.write_bytes) == (2 * 64 + 4, 32)


def test_one_tensor_gives_half_of_it() -> None:
    cost = costed("SwiGLUFunction", "bf16 2048 2816", "False", "False")
    assert (cost.read_bytes, cost.write_bytes) == (2 * 2048 * 2816, 2 * 2048 * 1408)
    weighted = costed("WeightedSwiGLUFunction", "bf16 2048 2816", "fp32 2048 1", "False")
    assert weighted.read_bytes == cost.read_bytes + 4 * 2048
    assert weighted.flops == 7 * 2048 * 1408


def test_gradients_of_both_halves() -> None:
    forward = recorded("SwiGLUFunction", "bf16 16 32", "False")
    cost = costed("SwiGLUFunctionBackward", "bf16 16 16", forward=forward)
    assert (cost.read_bytes, cost.write_bytes) == (2 * (256 + 512), 2 * 512)
    assert costed("SwiGLUFunctionBackward", "bf16 16 16") == cost
    with pytest.raises(Uncounted, match="match"):
        costed("SwiGLUFunctionBackward", "bf16 16 8", forward=forward)


def test_two_separate_halves() -> None:
    cost = costed("LigerSiLUMulFunction", "bf16 16 32", "bf16 16 32")
    assert (cost.read_bytes, cost.write_bytes) == (2 * 2 * 512, 2 * 512)
    assert costed("LigerSiLUMulFunctionBackward", "bf16 16 32").write_bytes == 2 * 2 * 512


def test_no_halves() -> None:
    with pytest.raises(Uncounted, match="halved"):
        costed("SwiGLUFunction", "bf16 16 33")
    with pytest.raises(Uncounted, match="no shapes"):
        costed("_C::silu_and_mul")

"""`torch._foreach_*` against hand-worked counts, and as Megatron's optimizer records them."""

from typing import Any

import pytest

from tracelens.costs import OpCall, OpCost, Uncounted, find
from tracelens.costs.multi_tensor import ONE_FACTOR

LISTS = [[1000, 10], [24]]
"""10,024 elements, 40,096 bytes."""


def kernel(metadata: str, what: str) -> str:
    arguments = f"at::native::{metadata}, at::native::{what}, std::plus<float>, float"
    return f"void multi_tensor_apply_kernel<{arguments}>({arguments})"


ONE = kernel("TensorListMetadata<1>", "BinaryOpScalarFunctor<float, 1, 1, 0>")


def counted(call: OpCall) -> OpCost:
    model = find(call.name)
    assert model is not None
    return model.function(call)


def foreach(name: str, *shapes: Any, values: tuple[str, ...] = (), by: str = ONE) -> OpCost:
    return counted(OpCall(f"aten::_foreach_{name}", shapes, [""] * len(shapes), values, kernel=by))


def test_addcdiv_as_recorded() -> None:
    op_cost = foreach("addcdiv_", [[33884544]], [[33884544]], [[33884544]], [])
    # Three lists read, one written, 4 bytes an element; a + s·b/c.
    assert op_cost == OpCost(101_653_632, 406_614_528, 135_538_176, "fp32", dims=(("elements", 33884544),))


def test_the_factors_of_addcmul_are_one_tensor_where_they_can_be() -> None:
    op_cost = foreach("addcmul_", LISTS, LISTS, LISTS, [])
    assert (op_cost.read_bytes, op_cost.note) == (2 * 40_096, ONE_FACTOR)
    other = foreach("addcmul_", LISTS, LISTS, [[1000, 1], [24]], [])
    assert (other.read_bytes, other.note) == (2 * 40_096 + 4 * 1024, "")


@pytest.mark.parametrize("name", ["sqrt", "sqrt_", "mul", "mul_", "div", "pow", "clamp_min_", "neg"])
def test_a_list_and_at_most_a_scalar(name: str) -> None:
    op_cost = foreach(name, LISTS, [])
    assert (op_cost.flops, op_cost.read_bytes, op_cost.write_bytes) == (10_024, 40_096, 40_096)


@pytest.mark.parametrize(
    ("name", "alpha", "operations"),
    [
        ("add_", "1", 1),
        ("add_", "-0.001", 2),
        ("add", "", 1),
        ("sub", "2", 2),
        ("mul_", "", 1),
        ("lerp_", "", 3),
    ],
)
def test_two_lists(name: str, alpha: str, operations: int) -> None:
    op_cost = foreach(name, LISTS, LISTS, [], values=("", "", alpha))
    assert (op_cost.flops, op_cost.read_bytes) == (operations * 10_024, 2 * 40_096)


def test_a_scalar_to_the_power_of_a_list() -> None:
    assert foreach("pow", [], LISTS).flops == 10_024


def test_copies_and_fills() -> None:
    copy = kernel("TensorListMetadata<2>", "CopyFunctor<c10::BFloat16, float, 2, 1, 1>")
    op_cost = foreach("copy_", LISTS, LISTS, [], by=copy)
    assert (op_cost.flops, op_cost.read_bytes, op_cost.write_bytes, op_cost.dtype) == (
        0,
        40_096,
        20_048,
        "bf16",
    )
    zero = kernel("TensorListMetadata<1>", "ZeroFunctor<float, 1, 1, 0>")
    op_cost = foreach("zero_", LISTS, by=zero)
    assert (op_cost.flops, op_cost.read_bytes, op_cost.write_bytes) == (0, 0, 40_096)


def test_norms_write_one_number_a_tensor() -> None:
    norm = kernel("TensorListMetadata<1>", "LpNormFunctor<float, (at::native::NormType)1, float, 1, 1, 0>")
    op_cost = foreach("norm", LISTS, [], [], by=norm)
    assert (op_cost.flops, op_cost.read_bytes, op_cost.write_bytes) == (20_048, 40_096, 8)
    assert foreach("max", LISTS, by=norm).flops == 10_024


def test_unscaling_gradients() -> None:
    call = OpCall(
        "aten::_amp_foreach_non_finite_check_and_unscale_",
        [LISTS, [1], [1]],
        ["", "fp32", "fp32"],
        kernel=ONE,
    )
    op_cost = counted(call)
    assert (op_cost.flops, op_cost.read_bytes, op_cost.write_bytes) == (20_048, 40_096, 40_096)


def test_what_cannot_be_counted_is_told() -> None:
    with pytest.raises(Uncounted, match="no shapes"):
        foreach("mul_")
    with pytest.raises(Uncounted, match="more than 30 tensors"):
        foreach("mul_", [], [])
    with pytest.raises(Uncounted, match="not a multi-tensor kernel"):
        foreach("mul_", LISTS, by="elementwise_kernel")
    with pytest.raises(Uncounted, match="not a list of sizes"):
        foreach("mul_", [[-1]])

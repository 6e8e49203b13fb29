"""Fused optimizer steps against hand-worked counts."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.costs import OpCall, OpCost, Uncounted, find

ADAM = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<"
    "at::native::(anonymous namespace)::FusedOptimizerTensorListMetadata<4>, "
    "at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4, (at::native::ADAM_MODE)1, false>>()"
)
SGD = ADAM.replace(
    "FusedAdamMathFunctor<float, 4, (at::native::ADAM_MODE)1, false>", "FusedSgdMathFunctor<float, 3>"
)
PARAMETERS = [[1000, 100], [100]]
"""100,100 of them, 400,400 bytes."""


def counted(call: OpCall) -> OpCost:
    model = find(call.name)
    assert model is not None
    return model.function(call)


def adam(amsgrad: str = "False", scale: bool = False, name: str = "aten::_fused_adamw_") -> OpCall:
    shapes: list[Any] = [PARAMETERS] * 4 + [[], [[]] * 2] + [[]] * 9
    dtypes = [""] * 13 + ["fp32" if scale else "", ""]
    values = [""] * 6 + ["0.001", "0.9", "0.999", "0.01", "1e-08", amsgrad, "False", "", ""]
    return OpCall(name, shapes, dtypes, values, kernel=ADAM)


@pytest.mark.parametrize("name", ["aten::_fused_adam_", "aten::_fused_adamw_"])
def test_adam(name: str) -> None:
    assert counted(adam(name=name)) == OpCost(
        1_501_500, 4 * 400_400, 3 * 400_400, "fp32", dims=(("parameters", 100_100),)
    )


def test_amsgrad_and_a_gradient_scale() -> None:
    amsgrad = counted(adam("True"))
    assert (amsgrad.read_bytes, amsgrad.write_bytes) == (5 * 400_400, 4 * 400_400)
    scaled = counted(adam(scale=True))
    assert (scaled.read_bytes, scaled.write_bytes) == (4 * 400_400, 4 * 400_400)


@pytest.mark.parametrize(
    ("momentum", "first", "reads", "writes", "operations"),
    [("0", "False", 2, 1, 4), ("0.9", "False", 3, 2, 7), ("0.9", "True", 2, 2, 7)],
)
def test_sgd(momentum: str, first: str, reads: int, writes: int, operations: int) -> None:
    shapes: list[Any] = [PARAMETERS, PARAMETERS, [] if momentum == "0" else PARAMETERS] + [[]] * 9
    values = ["", "", "", "0", momentum, "0.1", "0", "False", "False", first, "", ""]
    op_cost = counted(OpCall("aten::_fused_sgd_", shapes, [""] * 12, values, kernel=SGD))
    assert op_cost.flops == operations * 100_100
    assert (op_cost.read_bytes, op_cost.write_bytes) == (reads * 400_400, writes * 400_400)


def test_adagrad() -> None:
    kernel = SGD.replace("FusedSgdMathFunctor", "FusedAdagradMathFunctor")
    op_cost = counted(OpCall("aten::_fused_adagrad_", [PARAMETERS] * 3, [""] * 3, kernel=kernel))
    assert (op_cost.flops, op_cost.read_bytes, op_cost.write_bytes) == (9 * 100_100, 3 * 400_400, 2 * 400_400)


@given(st.lists(st.lists(st.integers(0, 50), max_size=3), min_size=1, max_size=30))
def test_adam_moves_seven_elements_a_parameter(shapes: list[list[int]]) -> None:
    op_cost = counted(OpCall("aten::_fused_adam_", [shapes] * 4, [""] * 4, kernel=ADAM))
    assert op_cost.read_bytes + op_cost.write_bytes == 7 * 4 * dict(op_cost.dims)["parameters"]


def test_what_cannot_be_counted_is_told() -> None:
    with pytest.raises(Uncounted, match="no shapes"):
        counted(OpCall("aten::_fused_adam_", kernel=ADAM))
    with pytest.raises(Uncounted, match="more than 30 tensors"):
        counted(OpCall("aten::_fused_adam_", [[]] * 15, [""] * 15, kernel=ADAM))
    with pytest.raises(Uncounted, match="not a multi-tensor kernel"):
        counted(OpCall("aten::_fused_adam_", [PARAMETERS] * 4, [""] * 4, kernel="other"))

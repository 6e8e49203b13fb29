"""Arguments that no model expects: counted or `Uncounted`, never another exception or less than nothing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.costs.recorded import only_uncounted
from tracelens.costs import COSTS, OpCall, Uncounted

MODELS = [model for _, model in COSTS.items()]
NAMES = sorted(model.name.replace("*", "") for model in MODELS)
# One op of each function, for arguments by chance.
ONE_EACH = sorted({model.function: model.name.replace("*", "") for model in MODELS}.values())

SHAPES = (
    [], [0], [3], [0, 0], [2, 3], [2, 0, 4], [1, 2, 3, 4], [1, 2, 3, 4, 5], [2] * 6, [[2], [3]], [-3, 2],
    [[2, 2], [-1]],
)  # fmt: skip
VALUES = (
    "", "True", "False", "0", "1", "2", "-1", "16", "0.5", "-inf", "nan", "x", "[2, 2]", "[1]", "[0, -9]",
    "[]", "[1", "[True, False, True]", "9" * 30,
)  # fmt: skip
TYPES = ("bf16", "fp32", "i32", "i64", "bool", "c64", "fp8e4m3", "fp4x2", "no_type", "")
KERNELS = (
    "", "CatArrayBatchedCopy<OpaqueType<2u>, 3>", "vectorized_gather_kernel<16, long>", "CatArrayBatched<x>",
    "index_elementwise_kernel<128, 4, x>", "multi_tensor_apply_kernel<TensorListMetadata<4>, X<float>>",
)  # fmt: skip
SAME: list[tuple[Any, Any, Any]] = [
    ([[1]] * 12, ["nonsense"] * 12, ["-1"] * 12),
    ([[-3, 2]] * 12, ["bf16"] * 12, ["-7"] * 12),
    ([[[2, 2]], [[2, 2]], 5, "x", None], ["", "", "fp32", "bf16", "i64"], ["x", "[1", "1e9"]),
    *(
        ([shape] * 18, ["bf16"] * 18, [value] * 18)
        for shape in SHAPES
        for value in ("", "True", "False", "2", "[2, 2]")
    ),
]


def test_nothing_recorded() -> None:
    for model in MODELS:
        with pytest.raises(Uncounted):
            model.function(OpCall(model.name))


@pytest.mark.parametrize("arguments", SAME, ids=lambda arguments: str(arguments)[:40])
def test_the_same_for_all(arguments: tuple[Any, Any, Any]) -> None:
    shapes, dtypes, values = arguments
    forward = OpCall("forward", *arguments)
    for name in NAMES:
        only_uncounted(OpCall(name, *arguments, kernel="kernel<>", forward=forward))
        only_uncounted(OpCall(name, shapes[:1], dtypes[:1], values[:1], forward=forward))


ARGUMENT = st.tuples(st.sampled_from(SHAPES), st.sampled_from(TYPES), st.sampled_from(VALUES))
ARGUMENTS = st.one_of([st.lists(ARGUMENT, min_size=count, max_size=count) for count in range(19)])


@settings(derandomize=True, max_examples=5 * settings().max_examples)
@given(arguments=ARGUMENTS, kernel=st.sampled_from(KERNELS), blocks=st.integers(-1, 9))
def test_any(arguments: list[tuple[Any, str, str]], kernel: str, blocks: int) -> None:
    """Making arguments takes longer than counting them, so all functions are called with each."""
    shapes, dtypes, values = ([argument[part] for argument in arguments] for part in range(3))
    for name in ONE_EACH:
        call = OpCall(name, shapes, dtypes, values, kernel=kernel, blocks=blocks)
        only_uncounted(call)
        only_uncounted(OpCall(name, shapes[:1], dtypes[:1], values[:1], forward=call))

"""Calls that differ in sizes alone: counted together as one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.costs.test_odd_arguments import KERNELS, ONE_EACH, TYPES, VALUES
from tracelens.costs import CostModel, OpCall, OpCost, Uncounted, find


def one_by_one(call: OpCall, shapes: Sequence[Any], blocks: Sequence[int]) -> list[OpCost | str]:
    found = find(call.name)
    assert found is not None, call.name
    counted: list[OpCost | str] = []
    for own, count in zip(shapes, blocks, strict=True):
        try:
            counted.append(found.count(call._replace(shapes=own, blocks=count)))
        except Uncounted as why:
            counted.append(why.reason)
    return counted


def together(call: OpCall, shapes: Sequence[Any], blocks: Sequence[int]) -> list[OpCost | str]:
    found = find(call.name)
    assert found is not None, call.name
    return found.count_alike(call, shapes, blocks)


# An argument's dimensions are letters, each of which is another number in each call.
LETTERS = st.lists(st.sampled_from("abcab1"), max_size=4)
ARGUMENT = st.tuples(
    st.one_of(LETTERS, st.lists(LETTERS, max_size=3)), st.sampled_from(TYPES), st.sampled_from(VALUES)
)
NUMBERS = st.lists(
    st.tuples(*[st.one_of(st.integers(0, 3), st.integers(0, 1 << 40))] * 3), min_size=4, max_size=7
)


def put(argument: Any, numbers: dict[str, int]) -> Any:
    return numbers[argument] if isinstance(argument, str) else [put(item, numbers) for item in argument]


@settings(derandomize=True)
@given(
    arguments=st.lists(ARGUMENT, max_size=12),
    numbers=NUMBERS,
    kernel=st.sampled_from(KERNELS),
    blocks=st.lists(st.integers(-1, 9), min_size=7, max_size=7),
)
def test_any_sizes(
    arguments: list[tuple[Any, str, str]], numbers: list[tuple[int, int, int]], kernel: str, blocks: list[int]
) -> None:
    letters = [{"a": a, "b": b, "c": c, "1": 1} for a, b, c in numbers]
    shapes = [[put(shape, own) for shape, _, _ in arguments] for own in letters]
    dtypes, values = [dtype for _, dtype, _ in arguments], [value for _, _, value in arguments]
    for name in ONE_EACH:
        call = OpCall(name, shapes[0], dtypes, values, kernel=kernel)
        forward = call._replace(forward=call)
        for one in (call, forward):
            assert together(one, shapes, blocks[: len(shapes)]) == one_by_one(
                one, shapes, blocks[: len(shapes)]
            ), name


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        # Sizes that models sum up, compare, divide and write down.
        ("aten::mm", [[[rows, 64], [64, 32]] for rows in (1, 2, 3, 5, 1 << 50)]),
        ("aten::mul", [[[rows, 8], [1, 8]] for rows in (0, 1, 2, 3, 1)]),
        ("aten::mul", [[[rows, 8], [7, 8]] for rows in (7, 1, 2, 7, 1)]),
        ("aten::cat", [[[[rows, 8], [2 * rows, 8]]] for rows in (1, 5, 9, 2)]),
        ("aten::topk", [[[rows, 64]] for rows in (0, 3, 4, 1000)]),
        ("aten::silu", [[[rows, 8]] for rows in (1, -1, 3, 4)]),
        ("aten::silu", [[[rows, 8]] for rows in (1, "s0", 3, 4)]),
        ("aten::silu", [[[8]], [[8, 8]], [[8]], [[8]]]),
        ("aten::silu", [[], [], [], []]),
    ],
)
def test_sizes(name: str, shapes: list[Any]) -> None:
    call = OpCall(name, shapes[0], ["bf16"] * 2, ["", "4"])
    assert together(call, shapes, [8] * len(shapes)) == one_by_one(call, shapes, [8] * len(shapes))


def made_up(
    function: Callable[[OpCall], OpCost], module: str = "tracelens.costs.made_up"
) -> tuple[CostModel, list[OpCall]]:
    """A cost model of this function, and the calls with which it is asked."""
    asked: list[OpCall] = []

    def model(call: OpCall) -> OpCost:
        asked.append(call)
        return function(call)

    model.__module__ = module
    return CostModel("made::up", model), asked


def counted(model: CostModel, rows: Sequence[int]) -> list[OpCost | str]:
    """What a model says of matrices of two columns and as many rows."""
    return model.count_alike(
        OpCall("made::up", dtypes=["i8"]), [[[count, 2]] for count in rows], [1] * len(rows)
    )


def test_calls_of_a_kind_are_counted_at_once() -> None:
    """One question for all, and one for each part that it tells apart; none of them of a plugin."""

    def rows(call: OpCall) -> OpCost:
        x = call.tensor(0)
        return OpCost(x.numel if x.shape[0] > 9 else 0, x.bytes, 0, x.dtype, dims=(("M", x.shape[0]),))

    expected = [OpCost(2 * m if m > 9 else 0, 2 * m, 0, "i8", dims=(("M", m),)) for m in range(5, 15)]
    for module, count in (("tracelens.costs.made_up", 3), ("plugin", 10)):
        model, asked = made_up(rows, module)
        assert counted(model, range(5, 15)) == expected
        assert len(asked) == count


def test_a_model_that_fails_fails_for_each() -> None:
    model, _ = made_up(lambda call: OpCost(1 // (call.tensor(0).shape[0] - 3), 0, 0, "i8"))
    of_calls = counted(model, [1, 2, 3, 4])
    assert [isinstance(item, OpCost) for item in of_calls] == [True, True, False, True]
    assert "ZeroDivisionError" in str(of_calls[2])


FORMULAS: list[Callable[[Any], Any]] = [
    lambda m: 3 * m + m * 5 - (7 - m) + -m + 1 - 2 * m,
    lambda m: 100 // (m + 1) + m // 3 + m % 4 + 100 % (m + 1) - m,
    lambda m: max(m, 4) + min(3, m),
    lambda m: 1 if 2 <= m < 5 else 2 if m > 7 and m >= 8 else 3,
    lambda m: 1 if m == 4 else 2 if m != 5 else 3,
    lambda m: 1 if m else 2,
    lambda m: sum([m, 4, m]),
    lambda m: m + m * m,
]


@pytest.mark.parametrize("formula", FORMULAS)
def test_sizes_calculate_as_integers(formula: Callable[[Any], Any]) -> None:
    sizes = [0, 3, 4, 5, 9, 1 << 20]
    model, asked = made_up(lambda call: OpCost(formula(call.tensor(0).shape[0]), 0, 0, "i8"))
    assert counted(model, sizes) == [OpCost(formula(size), 0, 0, "i8") for size in sizes]
    assert "Sizes" in {type(call.shapes[0][0]).__name__ for call in asked}


@pytest.mark.parametrize(
    "use", [str, hash, int, range, float, "{}".format, lambda size: size / 2, lambda size: size < 2.5]
)
def test_what_has_no_answer_for_all_is_asked_of_each(use: Callable[[Any], Any]) -> None:
    def model_with(call: OpCall) -> OpCost:
        size = call.tensor(0).shape[0]
        return OpCost(size, 0, 0, "i8", note=repr(use(size)))

    model, asked = made_up(model_with)
    assert counted(model, [1, 2, 3, 4]) == [
        OpCost(size, 0, 0, "i8", note=repr(use(size))) for size in (1, 2, 3, 4)
    ]
    assert len(asked) == 5

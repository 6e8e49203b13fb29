"""Calls that differ in sizes alone: counted together as one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.costs.test_odd_arguments import KERNELS, ONE_EACH, TYPES, VALUES
from tracelens.costs import OpCall, OpCost, Uncounted, find, model
from tracelens.costs.sizes import Differ, Sizes, each, merged


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


def test_calls_of_a_kind_are_counted_at_once() -> None:
    """One call of the model for all, and one more for those that it tells apart."""
    calls = []

    def rows(call: OpCall) -> OpCost:
        """Rows."""
        calls.append(call.shapes)
        x = call.tensor(0)
        return OpCost(x.numel if x.shape[0] > 9 else 0, x.bytes, 0, x.dtype, dims=(("M", x.shape[0]),))

    rows.__module__ = "tracelens.costs.made_up"
    made = model.CostModel("made::up", rows)
    counted = made.count_alike(
        OpCall("made::up", dtypes=["i8"]), [[[size, 2]] for size in range(5, 15)], [1] * 10
    )
    assert counted == [OpCost(2 * m if m > 9 else 0, 2 * m, 0, "i8", dims=(("M", m),)) for m in range(5, 15)]
    assert len(calls) == 3
    calls.clear()
    rows.__module__ = "plugin"  # which knows integers alone
    assert (
        made.count_alike(OpCall("made::up", dtypes=["i8"]), [[[size, 2]] for size in range(5, 15)], [1] * 10)
        == counted
    )
    assert len(calls) == 10


def test_a_model_that_fails_fails_for_each() -> None:
    def failing(call: OpCall) -> OpCost:
        """Fails with large numbers."""
        return OpCost(1 // (call.tensor(0).shape[0] - 3), 0, 0, "i8")

    failing.__module__ = "tracelens.costs.made_up"
    counted = model.CostModel("made::up", failing).count_alike(
        OpCall("made::up", dtypes=["i8"]), [[[size]] for size in (1, 2, 3, 4)], [1] * 4
    )
    assert [isinstance(item, OpCost) for item in counted] == [True, True, False, True]
    assert "ZeroDivisionError" in str(counted[2])


@given(
    st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), min_size=1, max_size=5), st.integers(-9, 9)
)
def test_arithmetic_is_that_of_integers(pairs: list[tuple[int, int]], number: int) -> None:
    left, right = Sizes([a for a, _ in pairs]), Sizes([b for _, b in pairs])
    assert (left + right * number - left).each == [a + b * number - a for a, b in pairs]
    assert (number - left + -right).each == [number - a - b for a, b in pairs]
    answers = [a < b for a, b in pairs]
    if len({*answers}) == 1:
        assert (left < right) is answers[0]
    else:
        with pytest.raises(Differ) as differ:
            bool(left < right)
        assert differ.value.answers == answers


@pytest.mark.parametrize(
    "use", [str, hash, int, range, float, "{}".format, lambda size: size / 2, lambda size: size < 2.5]
)
def test_what_has_no_answer_for_all(use: Any) -> None:
    with pytest.raises(TypeError):
        use(Sizes([1, 2]))


def test_shapes_are_merged_where_integers_differ() -> None:
    shapes = merged([[[1, 2], [], [[3]]], [[4, 2], [], [[5]]]])
    assert (shapes[0][0].each, shapes[0][1], shapes[1], shapes[2][0][0].each) == ((1, 4), 2, [], (3, 5))
    assert [*each((shapes[0][0], "text", ()), 2)] == [(1, "text", ()), (4, "text", ())]
    for unlike in ([[1], [1, 2]], [[1], 1], [["s0"], [1]], [[1.5], [2]]):
        with pytest.raises(TypeError):
            merged(unlike)

"""Values that ops accept: indices in range, groups that add up, numbers where torch takes none on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import effort
from tracelens.reproducers import arguments
from tracelens.reproducers.arguments import INDICES_UNKNOWN, TensorArgument, Unreplayable, dense, fill


def fp32(*shape: int) -> TensorArgument:
    return TensorArgument("float32", shape, dense(shape))


def i64(*shape: int) -> TensorArgument:
    return TensorArgument("int64", shape, dense(shape))


def ends(number: int) -> TensorArgument:
    return TensorArgument("int32", (number,), (1,))


def made(op: str, place: int, *arguments: Any) -> tuple[Any, ...]:
    """The maker of one argument and what it is given; all others stay as they are."""
    found = fill(f"aten::{op}", arguments)
    others = [one for at, one in enumerate(found) if at != place]
    assert others == [one for at, one in enumerate(arguments) if at != place]
    assert (found[place].shape, found[place].stride) == (arguments[place].shape, arguments[place].stride)
    return found[place].maker, *found[place].maker_args


def test_most_ops_take_any_values() -> None:
    call = [fp32(4, 8), fp32(8, 2), None, 1, [2, 3], [fp32(3)]]
    assert fill("aten::mm", call) == call


@pytest.mark.parametrize("name", ["gather", "index", "nll_loss_forward"])
def test_ops_of_other_libraries_take_any_values(name: str) -> None:
    assert fill(f"mylib::{name}", [fp32(3)]) == [fp32(3)]


@pytest.mark.parametrize(
    ("dim", "below"), [(0, 10), (1, 20), (-1, 30), (-3, 10)]
)  # of the first argument along that dimension
@pytest.mark.parametrize("op", ["gather", "scatter_add", "scatter_add_", "scatter_reduce"])
def test_indices_are_below_the_size_of_their_dimension(op: str, dim: int, below: int) -> None:
    assert made(op, 2, fp32(10, 20, 30), dim, i64(2, 2, 2), fp32(2, 2, 2)) == ("indices", below)


def test_indices_of_rows() -> None:
    assert made("index_select", 2, fp32(100, 8), 0, i64(7)) == ("indices", 100)
    assert made("index_add_", 2, fp32(100, 8), 1, i64(7), fp32(100, 7)) == ("indices", 8)
    assert made("embedding", 1, fp32(32000, 64), i64(2, 9), -1, False, False) == ("indices", 32000)
    assert made("embedding_dense_backward", 1, fp32(2, 9, 64), i64(2, 9), 32000, -1, False) == (
        "indices",
        32000,
    )


def test_indices_of_classes() -> None:
    assert made("nll_loss_forward", 1, fp32(16, 1000), i64(16), None, 1, -100) == ("indices", 1000)
    assert made("nll_loss_forward", 1, fp32(1000), i64(), None, 1, -100) == ("indices", 1000)
    # The dimension of classes is the second of an image too.
    assert made("nll_loss2d_forward", 1, fp32(2, 21, 8, 8), i64(2, 8, 8), None, 1, -100) == ("indices", 21)
    assert made("nll_loss_backward", 2, fp32(), fp32(16, 1000), i64(16), None, 1, -100, fp32()) == (
        "indices",
        1000,
    )


def test_what_is_written_to_is_written_once() -> None:
    # Else the result depends on the order of writes, and there would be nothing to compare with.
    assert made("scatter_", 2, fp32(40, 64), -1, i64(40, 6), fp32(40, 6)) == ("distinct", 64, 1)
    assert made("scatter_", 2, fp32(40, 64), 0, i64(30, 64), fp32(30, 64)) == ("distinct", 40, 0)
    assert made("index_copy_", 2, fp32(40, 64), 0, i64(6), fp32(6, 64)) == ("distinct", 40, 0)
    assert made("index_copy_", 2, fp32(4, 64, 2), 2, i64(1), fp32(4, 64, 1)) == ("distinct", 2, 0)
    # More than there are places: they cannot be distinct.
    assert made("scatter_", 2, fp32(4, 3), 1, i64(4, 6), fp32(4, 6)) == ("indices", 3)


def test_an_index_without_dimensions() -> None:
    assert fill("aten::gather", [fp32(), 0, i64()])[2].maker_args == (1,)
    assert fill("aten::index_select", [fp32(8, 2), 0, i64()])[2] == i64().made("indices", 8)


def test_the_order_of_a_python_number_and_an_index() -> None:
    """A scalar that only looks like an index stays a number on the host."""
    assert fill("aten::index_fill_", [fp32(8, 2), 0, i64(3), fp32()])[2:] == [
        i64(3).made("indices", 8),
        fp32(),
    ]


def test_arguments_that_are_missing() -> None:
    for call in ([fp32(8)], [fp32(8), 0], [fp32(8), 0, None], [0, 0, i64(3)]):
        with pytest.raises(Unreplayable, match=r"argument \d is not a recorded tensor"):
            fill("aten::gather", call)
    with pytest.raises(Unreplayable, match="argument 1 has no recorded value"):
        fill("aten::gather", [fp32(8, 2), None, i64(3, 2)])


def test_the_only_dimension_needs_no_value() -> None:
    # Older profilers record no values.
    assert fill("aten::gather", [fp32(8), None, i64(3)]) == [fp32(8), 0, i64(3).made("indices", 8)]


@pytest.mark.parametrize(
    ("op", "call"),
    [
        ("gather", [fp32(8), 3, i64(3)]),
        ("gather", [fp32(8), -2, i64(3)]),
        ("scatter", [fp32(8, 2), 1, i64(3), fp32(3)]),
        ("_grouped_mm", [fp32(8), fp32(4, 8, 2), ends(4)]),
    ],
)
def test_a_dimension_that_is_not_there(op: str, call: list[Any]) -> None:
    with pytest.raises(Unreplayable):
        fill(f"aten::{op}", call)


def test_python_numbers_are_on_the_host() -> None:
    # `x * 2` and `x + 0.5` show the number as a tensor without dimensions.
    for dtype in ("float64", "int64", "bool", "complex128"):
        number = TensorArgument(dtype, (), ())
        assert fill("aten::mul", [fp32(8), number]) == [fp32(8), number.made("number")]
    # Of another type it is a tensor: torch makes numbers of these four only.
    for dtype in ("float32", "bfloat16", "int32"):
        assert fill("aten::mul", [fp32(8), TensorArgument(dtype, (), ())])[1].maker == "strided"
    # What is written to is one as well.
    assert fill("aten::add_", [i64(), i64(), 1])[0] == i64()


def test_variances_are_positive() -> None:
    channel, image = fp32(4), fp32(2, 4, 6, 6)
    found = fill("aten::native_batch_norm", [image, channel, channel, channel, channel, True, 0.1, 1e-5])
    assert [one.maker for one in found[:5]] == ["strided"] * 4 + ["positive"]
    found = fill("aten::native_batch_norm_backward", [image, image, *[channel] * 5, True, 1e-5, [True] * 3])
    assert [at for at, one in enumerate(found[:7]) if one.maker == "positive"] == [4, 6]
    for op in ("sqrt", "rsqrt", "log", "log2", "rsqrt_"):
        assert made(op, 0, fp32(8)) == ("positive",)
    # Without running statistics there is nothing to make.
    assert fill("aten::native_batch_norm", [image, channel, channel, None, None, True, 0.1, 1e-5])[4] is None


def test_squares_of_an_optimizer_are_positive() -> None:
    lists = [[fp32(8), fp32(4)] for _ in range(5)]
    steps = [TensorArgument("float32", (), ())] * 2
    found = fill("aten::_fused_adamw_", [*lists, steps, 1e-4, 0.9, 0.999, 0.01, 1e-8, False, False])
    makers = [{one.maker for one in some} for some in found[:6]]
    assert makers == [{"strided"}] * 3 + [{"positive"}, {"strided"}, {"positive"}]
    assert [one.shape for one in found[3]] == [(8,), (4,)]
    assert {one.maker for one in fill("aten::_foreach_sqrt", [[fp32(8)]])[0]} == {"positive"}


@pytest.mark.parametrize("op", ["index_put_", "index_put", "_index_put_impl_", "_unsafe_index_put"])
def test_indices_to_put_at_follow_from_the_shapes(op: str) -> None:
    found = fill(f"aten::{op}", [fp32(100, 8), None, fp32(24, 8), True, True])
    assert found[1] == [TensorArgument("int64", (24,), (1,), "indices", (100,))]
    assert [found[0], *found[2:]] == [fp32(100, 8), fp32(24, 8), True, True]


@pytest.mark.parametrize(
    "shapes", [((100, 8), (24, 7)), ((100, 8), ()), ((), (3,)), ((100, 8), (8,)), ((100, 8), (2, 3, 8))]
)
def test_other_indices_are_not_known(shapes: Any) -> None:
    target, given = shapes
    with pytest.raises(Unreplayable) as error:
        fill("aten::index_put_", [fp32(*target), None, fp32(*given), False])
    assert str(error.value) == INDICES_UNKNOWN


@pytest.mark.parametrize("op", ["aten::index", "aten::_unsafe_index"])
def test_an_index_is_refused(op: str) -> None:
    with pytest.raises(Unreplayable) as error:
        fill(op, [fp32(100, 8), None])
    assert str(error.value) == INDICES_UNKNOWN


def test_a_quotient_of_integers_is_rounded_down() -> None:
    # Texts are not recorded: div.Tensor_mode with integers has floor or trunc.
    assert fill("aten::div", [i64(8), i64(8), None])[2] == "floor"
    assert fill("aten::div_", [ends(8), i64(), None])[2] == "floor"
    assert fill("aten::div", [fp32(8), fp32(8), None])[2] is None
    assert fill("aten::div", [i64(8), i64(8)]) == [i64(8), i64(8)]


ROWS, INNER, OUT, GROUPS = 50, 32, 16, 4


@pytest.mark.parametrize(
    ("first", "second", "total"),
    [
        pytest.param((ROWS, INNER), (GROUPS, INNER, OUT), ROWS, id="2d x 3d"),
        pytest.param((GROUPS, OUT, INNER), (INNER, ROWS), ROWS, id="3d x 2d"),
        pytest.param((OUT, ROWS), (ROWS, INNER), ROWS, id="2d x 2d"),
    ],
)
def test_groups_add_up(first: tuple[int, ...], second: tuple[int, ...], total: int) -> None:
    call = [fp32(*first), fp32(*second), ends(GROUPS), None, None]
    assert made("_grouped_mm", 2, *call) == ("routed", total, GROUPS)


def test_groups_of_equal_size_need_no_ends() -> None:
    call = [fp32(4, 8, 16), fp32(4, 16, 32), None, None, None]
    assert fill("aten::_grouped_mm", call) == call


def test_scaled_groups() -> None:
    fp8, weights = (
        TensorArgument("float8_e4m3fn", (48, 32), (32, 1)),
        TensorArgument("float8_e4m3fn", (4, 32, 16), (512, 1, 32)),
    )
    found = fill("aten::_scaled_grouped_mm", [fp8, weights, fp32(48), fp32(4, 16), ends(4), None])
    assert found[4] == ends(4).made("ends", [12] * 4)
    assert [one.maker for one in found[:4]] == ["strided", "strided", "positive", "positive"]


def test_scales_are_positive() -> None:
    fp8 = TensorArgument("float8_e4m3fn", (16, 32), (32, 1))
    found = fill("aten::_scaled_mm", [fp8, fp8, fp32(), fp32(16, 1), None])
    assert [one.maker for one in found[:4]] == ["strided", "strided", "positive", "positive"]


def test_arguments_given_stay_as_they_are() -> None:
    call = [fp32(10, 20), 0, i64(5)]
    fill("aten::index_select", call)
    assert call == [fp32(10, 20), 0, i64(5)]


few_tensors = st.builds(
    lambda dtype, shape: TensorArgument(dtype, tuple(shape), dense(shape)),
    st.sampled_from(["float32", "int64", "int32", "bool"]),
    st.lists(st.integers(0, 4), max_size=3),
)
anything = few_tensors | st.none() | st.integers(-1, 1) | st.booleans() | st.lists(few_tensors, max_size=2)
calls = st.tuples(
    few_tensors, few_tensors | st.integers(-3, 3), few_tensors | st.none(), st.lists(anything, max_size=5)
).map(lambda parts: [*parts[:3], *parts[3]])
names = st.sampled_from(sorted({*arguments._RULES, *arguments._GROUPED}))


@given(names, calls | st.lists(anything, max_size=7))
@settings(max_examples=effort(200, 500))
def test_any_arguments_are_filled_or_refused(name: str, call: list[Any]) -> None:
    try:
        found = fill(f"aten::{name}", call)
    except Unreplayable:
        return
    assert len(found) == len(call)

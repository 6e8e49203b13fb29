"""Recorded arguments: what is read of them, and what is refused with a reason."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.reproducers.arguments import (
    LONG_LIST,
    NO_SHAPES,
    OP,
    Argument,
    TensorArgument,
    Unreplayable,
    dense,
    read_arguments,
    tensors,
)

ONE = TensorArgument("float32", (2, 3), (3, 1))


def read_all(*given: tuple[Any, Any, Any, Any], of_lists: str = "float32") -> list[Argument]:
    """Arguments given as (type, sizes, strides, value), in the columns of the ops table."""
    types, dims, steps, values = ([one[at] for one in given] for at in range(4))
    return read_arguments(*map(json.dumps, (dims, types, steps, values)), of_lists=of_lists)


def beside(*argument: Any) -> Argument:
    """What an argument is read as, beside a tensor."""
    first, second = read_all(("float", [2, 3], [3, 1], ""), argument)
    assert first == ONE
    return second


def value(text: str) -> Argument:
    return beside("Scalar", [], [], text)


def test_a_product() -> None:
    found = read_all(
        ("c10::BFloat16", [4, 8], [1, 4], ""), ("c10::BFloat16", [8, 2], [2, 1], ""), ("Scalar", [], [], "1")
    )
    assert found == [
        TensorArgument("bfloat16", (4, 8), (1, 4)),
        TensorArgument("bfloat16", (8, 2), (2, 1)),
        1,
    ]
    assert [one.numel for one in tensors(found)] == [32, 16]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("float", "float32"),
        ("double", "float64"),
        ("c10::Half", "float16"),
        ("c10::BFloat16", "bfloat16"),
        ("long int", "int64"),
        ("long", "int64"),
        ("int", "int32"),
        ("short", "int16"),
        ("signed char", "int8"),
        ("unsigned char", "uint8"),
        ("bool", "bool"),
        ("c10::complex<float>", "complex64"),
        ("c10::complex<double>", "complex128"),
        ("c10::Float8_e4m3fn", "float8_e4m3fn"),
        ("c10::Float8_e4m3fnuz", "float8_e4m3fnuz"),
        ("c10::Float8_e5m2", "float8_e5m2"),
        ("c10::Float8_e5m2fnuz", "float8_e5m2fnuz"),
        ("c10::Float8_e8m0fnu", "float8_e8m0fnu"),
    ],
)
def test_element_types(name: str, dtype: str) -> None:
    assert beside(name, [7], [1], "") == TensorArgument(dtype, (7,), (1,))


@pytest.mark.parametrize(
    "name", ["float32'); import os #", "c10::Float8_e9m9", "torch.float32", "c10::quint8", "Object", 7, {}]
)
def test_other_types_are_refused(name: Any) -> None:
    with pytest.raises(Unreplayable, match="is not supported for tensors"):
        beside(name, [7], [1], "")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("7", 7),
        ("-100", -100),
        ("0.", 0.0),
        ("1.0000000000000001e-05", 1e-05),
        ("-3.4028234663852886e+38", -3.4028234663852886e38),
        ("1e-08", 1e-08),
        (".5", 0.5),
        ("inf", math.inf),
        ("-inf", -math.inf),
        ("True", True),
        ("False", False),
        ("None", None),
        ("", None),
        (" 3 ", 3),
        ("[]", []),
        ("[-1]", [-1]),
        ("[3, 3]", [3, 3]),
        ("[3,3,]", [3, 3]),
        ("[True, False]", [True, False]),
        ("[0.5, 2]", [0.5, 2]),
    ],
)
def test_values(text: str, wanted: Any) -> None:
    found = value(text)
    assert found == wanted
    assert repr(found) == repr(wanted)  # also the types: True is 1


def test_a_value_that_is_no_number_at_all() -> None:
    found = value("nan")
    assert isinstance(found, float)
    assert math.isnan(found)


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63)])
def test_the_largest_integer_stays_one(number: int) -> None:
    # What torch takes for "to the end", as in slice.
    assert repr(value(str(number))) == repr(number)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('touch PWNED')",
        "cuda:0",
        "1+1",
        "0x10",
        "1_000",
        "[1, [2]]",
        "[1; 2]",
        "(1, 2)",
        "True and False",
        "1e9999",
        "1\n2",
        "9" * 500 + "x",
        "int",
    ],
)
def test_values_that_are_no_numbers_are_refused(text: str) -> None:
    with pytest.raises(Unreplayable, match=r"argument 1 has the value .* not a number"):
        value(text)


def test_a_value_is_text_also_where_json_has_numbers() -> None:
    assert beside("Scalar", [], [], 5) == 5
    assert beside("Scalar", [], [], True) is True
    assert beside("Scalar", [], [], [1, 2]) == [1, 2]


def test_what_was_not_recorded_is_none() -> None:
    assert beside("", [], [], "") is None
    assert beside("None", [], [], "") is None
    assert beside("GenericList", [], [], "") is None
    assert beside("ScalarList", [], [], "[1, 1]") == [1, 1]


def test_a_tensor_without_dimensions() -> None:
    assert beside("long int", [], [], "") == TensorArgument("int64", (), ())
    assert TensorArgument("int64", (), ()).numel == 1


def test_an_empty_tensor() -> None:
    assert beside("float", [0, 4], [4, 1], "") == TensorArgument("float32", (0, 4), (4, 1))
    assert TensorArgument("float32", (0, 4), (4, 1)).numel == 0


def test_a_list_of_tensors() -> None:
    lists = ("TensorList", [[2, 3], [4], []], [[1, 2], [], []], "")
    (found,) = read_all(lists, of_lists="bfloat16")
    assert found == [
        TensorArgument("bfloat16", (2, 3), (1, 2)),
        TensorArgument("bfloat16", (4,), (1,)),
        TensorArgument("bfloat16", (), ()),
    ]
    assert tensors([1, found, ONE, [2, None]]) == [*found, ONE]


def test_an_empty_list_beside_a_full_one() -> None:
    # As the maximal squares of an optimizer that keeps none.
    assert read_all(("TensorList", [[4], [4]], [[1], [1]], ""), ("TensorList", [], [], ""))[1] == []


def test_a_long_list_has_no_shapes() -> None:
    with pytest.raises(Unreplayable) as error:
        read_all(("TensorList", [], [], ""), ("Scalar", [], [], "1"))
    assert str(error.value) == LONG_LIST
    assert "more than 30 tensors" in LONG_LIST


def test_nor_has_one_beside_a_tensor() -> None:
    # As in _foreach_mul_ of gradients and the factor that clips them.
    with pytest.raises(Unreplayable) as error:
        read_all(("TensorList", [], [], ""), ("float", [], [], ""))
    assert str(error.value) == LONG_LIST


@pytest.mark.parametrize("dims", [[2, 3], "x", 3, [[2], "y"], [[2], 3]])
def test_a_list_of_tensors_without_their_shapes(dims: Any) -> None:
    with pytest.raises(Unreplayable, match="a tensor list without a list of shapes"):
        beside("TensorList", dims, [], "")


def test_missing_strides_are_those_of_a_dense_tensor() -> None:
    assert beside("float", [2, 3, 4], [], "") == TensorArgument("float32", (2, 3, 4), (12, 4, 1))
    dims, types = json.dumps([[2, 3]]), json.dumps(["float"])
    assert read_arguments(dims, types, "", "", of_lists="float32") == [ONE]
    assert dense((2, 0, 3)) == (3, 3, 1)
    assert dense(()) == ()


def test_strides_may_expand_and_overlap() -> None:
    assert beside("float", [4, 8], [0, 1], "") == TensorArgument("float32", (4, 8), (0, 1))
    assert beside("float", [4, 8], [2, 1], "") == TensorArgument("float32", (4, 8), (2, 1))


def test_sizes_may_be_text() -> None:
    assert beside("float", ["2", "3"], ["3", "1"], "") == ONE


@pytest.mark.parametrize(
    ("dims", "steps", "said"),
    [
        ([2, 3], [1], "a tensor with a different number of strides and dimensions"),
        ([2], [3, 1], "a tensor with a different number of strides and dimensions"),
        ([], [1], "a tensor with a different number of strides and dimensions"),
        ([-1, 3], [3, 1], "a recorded shape is not a list of sizes: [-1, 3]"),
        ([2, 3], [-3, 1], "a recorded shape is not a list of sizes: [-3, 1]"),
        ([2.0], [1], "a recorded shape is not a list of sizes: [2.0]"),
        ([True], [1], "a recorded shape is not a list of sizes: [True]"),
        ([None], [1], "a recorded shape is not a list of sizes: [None]"),
        (["os.system('x')"], [1], "a recorded shape is not a list of sizes: [\"os.system('x')\"]"),
        ("12", [1], "a recorded shape is not a list of sizes: 12"),
        ({"a": 1}, [1], "a recorded shape is not a list of sizes: {'a': 1}"),
        ([[2]], [[1]], "a recorded shape is not a list of sizes: [[2]]"),
        ([1] * 33, [1] * 33, "a recorded shape is not a list of sizes: [1, 1, 1, 1"),
        ([1 << 41], [1], "a tensor larger than any memory: the recorded sizes are wrong"),
        ([1 << 21, 1 << 21], [0, 0], "a tensor larger than any memory: the recorded sizes are wrong"),
        ([2, 2], [1 << 41, 1], "a tensor larger than any memory: the recorded sizes are wrong"),
    ],
)
def test_impossible_tensors_are_refused(dims: Any, steps: Any, said: str) -> None:
    with pytest.raises(Unreplayable) as error:
        beside("float", dims, steps, "")
    assert str(error.value).startswith(said)
    assert len(str(error.value)) < 120


def test_a_reason_is_one_line() -> None:
    with pytest.raises(Unreplayable) as error:
        beside("float", "1\n2", [1], "")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "[]", "null", "{", "7", '{"a": [1]}', "[" * 100_000, "\ufeff[]"])
def test_what_is_no_list_is_not_recorded(text: str) -> None:
    kinds = '["float"]'
    for given_dims, given_types in ((text, kinds), ("[[2]]", text)):
        with pytest.raises(Unreplayable) as error:
            read_arguments(given_dims, given_types, "", "", of_lists="float32")
        assert str(error.value) == NO_SHAPES


def test_a_call_without_tensors_is_no_use() -> None:
    with pytest.raises(Unreplayable, match="no tensor among its recorded arguments"):
        read_all(("Scalar", [], [], "1"), ("", [], [], ""))


def test_a_deep_nest_is_refused() -> None:
    deep = "[" * 500 + "1" + "]" * 500
    with pytest.raises(Unreplayable):
        read_arguments(f"[{deep}]", '["float"]', "", "", of_lists="float32")
    with pytest.raises(Unreplayable):
        read_arguments("[[2]]", f'["float", {deep}]', "", "", of_lists="float32")


def test_made_gives_other_values_only() -> None:
    made = ONE.made("indices", 7)
    assert (made.maker, made.maker_args) == ("indices", (7,))
    assert (made.dtype, made.shape, made.stride) == (ONE.dtype, ONE.shape, ONE.stride)


@pytest.mark.parametrize(
    "name", ["aten::mm", "aten::_foreach_add_", "c10d::allreduce_", "my_lib::x9", "_a::_"]
)
def test_names_of_ops(name: str) -> None:
    assert OP.fullmatch(name)


@pytest.mark.parametrize(
    "name",
    [
        "mm", "aten::", "::mm", "aten::mm\n", "aten::mm.out", "aten::m m", "aten::mm()", "aten:mm",
        "a::b::c", "1a::b", "aten::mm\u0661", "\u00e4ten::mm", "aten::" + "m" * 200, "",
    ],
)  # fmt: skip
def test_other_names_are_none_of_ops(name: str) -> None:
    assert not OP.fullmatch(name)


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)
type_names = st.sampled_from([
    "float", "c10::BFloat16", "long int", "bool", "Scalar", "ScalarList", "TensorList", "GenericList", "",
    "None", "c10::Float8_e4m3fn", "nonsense",
])  # fmt: skip
sizes = st.lists(st.integers(-1, 1 << 21), max_size=4)
columns = st.one_of(
    st.text(max_size=30),
    json_values.map(json.dumps),
    st.lists(sizes | st.lists(sizes, max_size=3) | json_values, max_size=5).map(json.dumps),
    st.lists(type_names | json_values, max_size=5).map(json.dumps),
)


@given(dims=columns, types=columns, steps=columns, values=columns)
def test_any_text_is_read_or_refused(dims: str, types: str, steps: str, values: str) -> None:
    try:
        found = read_arguments(dims, types, steps, values, of_lists="float32")
    except Unreplayable as error:
        reason = str(error)
        assert (len(reason.splitlines()), reason[-1:] != ".") == (1, True)
        return
    assert tensors(found)
    for one in tensors(found):
        assert len(one.shape) == len(one.stride)
        assert one.numel <= 1 << 40
    plain = [leaf for one in found for leaf in (one if isinstance(one, list) else [one])]
    assert {type(one) for one in plain} <= {TensorArgument, int, float, bool, type(None)}


@given(st.text() | st.from_regex(r"\[[-+.,eE0-9 infaTrue]*\]", fullmatch=True))
def test_any_value_is_a_number_or_refused(text: str) -> None:
    try:
        found = value(text)
    except Unreplayable:
        return
    leaves = found if isinstance(found, list) else [found]
    assert {type(one) for one in leaves} <= {int, float, bool, type(None)}

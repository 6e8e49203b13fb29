"""Python source: whatever text a trace holds, a script holds it as a value."""

from __future__ import annotations

import ast
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.reproducers.arguments import TensorArgument, dense
from tracelens.reproducers.scripts import (
    WIDTH,
    about,
    call_arguments,
    code,
    lines,
    list_sizes,
    literal,
    mapping,
    plain,
    repeated,
)

HOSTILE = [
    "",
    "'",
    '"',
    '"""',
    "'''",
    "\\",
    '\\"',
    "\\\n",
    "a\nimport os",
    "a\rb",
    "a\x0cb",
    "a\x00b",
    "\x1b[31m",
    "\u2028\u2029\x85",
    "é日本",
    "\ufeff",
    "{{ 7 * 7 }}{% raw %}{#",
    "%s {0} $x",
    '"); __import__("os").system("touch PWNED") #',
]
NOT_BASIC = ["😀", "a\U0010ffffb"]


@pytest.mark.parametrize("text", HOSTILE)
def test_text_is_a_value(text: str) -> None:
    source = literal(text)
    assert ast.literal_eval(source) == text
    assert source.isascii()
    assert source.isprintable()


@pytest.mark.parametrize("text", NOT_BASIC)
def test_text_beyond_the_basic_plane_is_a_value(text: str) -> None:
    assert ast.literal_eval(literal(text)) == text


@given(st.text(st.characters(exclude_categories=["Cs"], max_codepoint=0xFFFF)))
def test_any_text_is_a_value(text: str) -> None:
    assert ast.literal_eval(literal(text)) == text


@pytest.mark.parametrize("value", [0, -1, 1 << 70, True, False, None, 0.0, -0.0, 1e-300, 0.1, 1e16])
def test_numbers_are_values(value: Any) -> None:
    assert repr(ast.literal_eval(literal(value))) == repr(value)


def test_numbers_without_a_literal() -> None:
    assert [literal(value) for value in (math.inf, -math.inf)] == ['float("inf")', 'float("-inf")']
    assert literal(math.nan) == 'float("nan")'


numbers = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    numbers | st.sampled_from(HOSTILE),
    lambda inner: st.lists(inner, max_size=4) | st.lists(inner, max_size=3).map(tuple),
)


@given(values)
def test_any_list_is_a_value(value: Any) -> None:
    assert repr(ast.literal_eval(literal(value))) == repr(value)


class Text:
    def __repr__(self) -> str:
        return "os.system('x')"


@pytest.mark.parametrize(
    "value", [b"x", {"a": 1}, {1}, 1j, Text(), [Text()], TensorArgument("int64", (), ()), print]
)
def test_there_is_no_source_for_anything_else(value: Any) -> None:
    with pytest.raises(TypeError, match="no source for"):
        literal(value)


@pytest.mark.parametrize("text", [*HOSTILE, *NOT_BASIC])
def test_text_to_read_is_one_printable_line(text: str) -> None:
    shown = plain(text)
    assert len(shown) == len(text)
    assert shown.isascii()
    assert shown == "" or shown.isprintable()


def test_long_text_to_read_keeps_both_ends() -> None:
    shown = plain("a" * 200 + "b" * 200)
    assert (len(shown), shown[:3], shown[-3:], "..." in shown) == (98, "aaa", "bbb", True)
    assert plain("c" * 98) == "c" * 98


@given(st.lists(st.text()))
def test_what_a_script_is_about_is_a_list_of_lines(texts: list[str]) -> None:
    source = about(texts)
    assert ast.literal_eval(source.text) == [plain(text) for text in texts]
    assert len(source.text.splitlines()) == max(len(texts), 1)
    assert source.outline == "DATA"


def test_what_a_script_is_about_fits_its_width() -> None:
    assert max(map(len, f"ABOUT = {about(['x' * 500, 'y']).text}".splitlines())) == WIDTH


def test_source_of_tensors() -> None:
    tensor = TensorArgument("bfloat16", (2, 3), (3, 1))
    assert code(tensor) == 'strided("bfloat16", (2, 3))'
    assert code(TensorArgument("bfloat16", (2, 3), (1, 2))) == 'strided("bfloat16", (2, 3), (1, 2))'
    assert code(TensorArgument("int64", (5,), (1,), "indices", (7,))) == 'indices("int64", (5,), 7)'
    distinct = TensorArgument("int64", (5,), (2,), "distinct", (7, 0))
    assert code(distinct) == 'distinct("int64", (5,), 7, 0, (2,))'
    assert code(TensorArgument("float32", (), ())) == 'strided("float32", ())'
    assert code(TensorArgument("float64", (), (), "number")) == "torch.tensor(2, dtype=torch.float64)"
    assert code(TensorArgument("int32", (3,), (1,), "ends", ([1, 2, 3],))) == 'ends("int32", [1, 2, 3])'
    assert code(TensorArgument("int32", (4,), (1,), "ends", ([8] * 4,))) == 'ends("int32", [8] * 4)'


def test_source_of_lists() -> None:
    tensor = TensorArgument("float32", (2,), (1,))
    one = 'strided("float32", (2,))'
    assert code([tensor]) == f"[{one}]"
    # New values for each: one tensor several times would be one in the caches.
    assert code([tensor] * 3) == f"[{one} for _ in range(3)]"
    assert code([tensor, TensorArgument("float32", (3,), (1,))]) == f'[{one}, strided("float32", (3,))]'
    assert code([]) == "[]"
    assert code([1, 1]) == "[1, 1]"
    assert code([True, 0.5, None]) == "[True, 0.5, None]"
    assert code("floor") == '"floor"'
    assert code(None) == "None"


def test_repeated_numbers() -> None:
    assert repeated([3, 3, 3]) == "[3, 3, 3]"
    assert repeated([3, 3, 3, 3]) == "[3] * 4"
    assert repeated([3, 3, 3, 4]) == "[3, 3, 3, 4]"
    assert repeated([0.5] * 9 + [3] * 7) == "[0.5] * 9 + [3] * 7"
    assert repeated([]) == "[]"


def test_lines_are_filled() -> None:
    assert lines(["f(1)", "f(2)", "3", "None", "g(4)"], 8) == ["f(1), f(2), 3, None, g(4),"]
    assert lines([], 8) == []
    # Six of 19 columns, each with a comma and a blank: five fit into 102.
    item = "strided(1, 2, 3, 4)"
    assert lines([item] * 6, 8) == [f"{item}, {item}, {item}, {item},", f"{item}, {item},"]


@given(st.lists(st.sampled_from(["f(1)", "None", "True", "0.1", 'f("x", (1, 2))', "[1, 2]", "-1e-08"])))
def test_lines_hold_the_items_in_order(items: list[str]) -> None:
    found = lines(items, 8)
    assert ast.dump(ast.parse(f"[{' '.join(found)}]")) == ast.dump(ast.parse(f"[{', '.join(items)}]"))
    assert all(len(line) <= WIDTH - 8 for line in found)


def test_a_long_list_is_wrapped() -> None:
    tensors: list[Any] = [TensorArgument("float32", (size, 1000), (1000, 1)) for size in range(20)]
    (item,) = [code(tensors)]
    found = lines([item, "1"], 8)
    assert len(found) >= 5
    assert all(len(line) <= WIDTH - 8 for line in found)
    assert ast.dump(ast.parse(f"[{' '.join(found)}]")) == ast.dump(ast.parse(f"[{item}, 1]"))


def test_a_mapping_is_source() -> None:
    text = mapping({'A "100"': 1.23456, "b": 1e-7, "c": 12345678.0}, 12)
    assert ast.literal_eval(text) == {'A "100"': 1.235, "b": 1e-7, "c": 12345678}
    assert ast.literal_eval(mapping({}, 12)) == {}


names = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20)


@given(st.dictionaries(names, st.floats(1e-6, 1e9), max_size=12), st.integers(0, 40))
def test_a_long_mapping_is_wrapped(values: dict[str, float], taken: int) -> None:
    text = mapping(values, taken)
    assert ast.literal_eval(text) == pytest.approx(values, rel=1e-3)
    first, *others = text.splitlines()
    assert len(first) <= WIDTH - taken
    assert all(len(line) <= WIDTH for line in others)


def test_arguments_of_a_call_stand_in_a_statement() -> None:
    lists: dict[Any, Any] = {}
    assert call_arguments([TensorArgument("float32", (2,), (1,)), 3], lists).text == (
        '[strided("float32", (2,)), 3]'
    )
    assert lists == {}


def test_long_lists_of_tensors_are_runs_of_shapes() -> None:
    shapes = [(4, 8)] * 3 + [(5,)] * 3
    dense_ones = [TensorArgument("float32", shape, dense(shape)) for shape in shapes]
    others = [*dense_ones[:3], TensorArgument("float32", (5,), (2,)), *dense_ones[4:]]
    lists: dict[Any, Any] = {}
    positive = [tensor.made("positive") for tensor in dense_ones]
    text = call_arguments([dense_ones, positive, others, 0.1], lists).text
    assert text == (
        '[each(strided, "float32", 0), each(positive, "float32", 0), each(strided, "float32", 0, 1), 0.1]'
    )
    assert ast.literal_eval(list_sizes(lists).text) == [
        [((4, 8), 3), ((5,), 1, (), (2,)), ((5,), 2)],
    ]
    wide = [TensorArgument("float64", (3,), (1,))] * 2
    text = call_arguments([[*dense_ones, *wide]], lists).text
    assert text == '[each(strided, "float32", 0) + each(strided, "float64", 1)]'
    assert ast.literal_eval(list_sizes(lists).text)[1] == [((3,), 2)]

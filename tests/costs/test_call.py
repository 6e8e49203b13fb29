"""`OpCall`: readers of recorded arguments, which fail in one way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.costs import NO_SHAPES, OpCall, Tensor, Uncounted, size
from tracelens.costs.model import LONG_LIST
from tracelens.dtypes import BITS

CALL = OpCall(
    "aten::op",
    [[2, 3], [], [[4], [5, 6]], []],
    ["bf16", "", "", "fp32"],
    ["", "True", "[1, -2]", "7"],
    [[3, 1], [], [[1], [6, 1]], []],
)


def test_a_tensor_has_its_shape_type_and_bytes() -> None:
    assert CALL.tensor(0) == Tensor((2, 3), "bf16", 6)
    assert (CALL.tensor(0).numel, CALL.tensor(0).bytes) == (6, 12)
    assert CALL.tensor(3) == Tensor((), "fp32", 1)
    assert CALL.tensors() == [CALL.tensor(0), CALL.tensor(3)]


def test_an_expanded_dimension_is_stored_once() -> None:
    call = OpCall("op", [[8, 1024]], ["fp32"], strides=[[0, 1]])
    assert (call.tensor(0).numel, call.tensor(0).bytes) == (8192, 4096)


@pytest.mark.parametrize("strides", [[], [[]], [[1]], ["x"], [None]])
def test_strides_that_do_not_fit_are_ignored(strides: list[object]) -> None:
    assert OpCall("op", [[8, 4]], ["fp32"], strides=strides).tensor(0).stored == 32


def test_what_is_no_tensor_is_told() -> None:
    with pytest.raises(Uncounted, match="argument 1 is not a recorded tensor"):
        CALL.tensor(1)
    with pytest.raises(Uncounted, match="argument 9"):
        CALL.tensor(9)
    assert [CALL.has(index) for index in range(5)] == [True, False, False, True, False]


def test_without_shapes_everything_says_so() -> None:
    empty = OpCall("aten::op")
    for read in (lambda: empty.tensor(0), empty.tensors, lambda: empty.listed(0, "fp32")):
        with pytest.raises(Uncounted) as error:
            read()
        assert str(error.value) == NO_SHAPES


def test_lists_of_tensors_take_the_given_type() -> None:
    assert CALL.listed(2, "fp16") == [Tensor((4,), "fp16", 4), Tensor((5, 6), "fp16", 30)]
    with pytest.raises(Uncounted, match="more than 30 tensors") as error:
        CALL.listed(1, "fp16")
    assert str(error.value) == LONG_LIST


@pytest.mark.parametrize("shape", [[-1], ["a"], [1.5], "x", 7, [None]])
def test_a_shape_that_is_none_is_told(shape: object) -> None:
    with pytest.raises(Uncounted, match="not a list of sizes"):
        OpCall("op", [shape], ["fp32"]).tensor(0)


def test_scalars() -> None:
    assert CALL.flag(1) is True
    assert CALL.flag(3) is False
    assert CALL.flag(9, default=True) is True
    assert CALL.integer(3) == 7
    assert CALL.integer(0, 5) == 5
    assert CALL.integers(2) == [1, -2]
    assert CALL.integers(1) == []
    assert CALL.text(9) == ""
    with pytest.raises(Uncounted, match="argument 0 has no recorded value"):
        CALL.integer(0)


@given(st.text(max_size=30))
def test_no_text_breaks_the_readers(text: str) -> None:
    call = OpCall("op", values=[text])
    assert isinstance(call.integer(0, 3), int)
    assert isinstance(call.integers(0), list)
    assert call.flag(0) in (True, False)


@pytest.mark.parametrize("text", ["--5", "²", "9" * 5000, "5-", "-"])
def test_what_looks_like_a_number_but_is_none(text: str) -> None:
    assert OpCall("op", values=[text]).integer(0, 3) == 3
    assert OpCall("op", values=[f"[{text}]"]).integers(0) == []


@pytest.mark.parametrize(
    ("elements", "dtype", "expected"),
    [(3, "fp4", 2), (4, "fp6", 3), (5, "fp4x2", 5), (7, "bf16", 14), (2, "c128", 32), (0, "fp4", 0)],
)
def test_size_rounds_up_to_bytes(elements: int, dtype: str, expected: int) -> None:
    assert size(elements, dtype) == expected


def test_an_unknown_element_type_is_told() -> None:
    with pytest.raises(Uncounted, match="unknown element type 'qint8'"):
        size(1, "qint8")
    with pytest.raises(Uncounted, match="no element type"):
        size(1, "")
    assert all(bits > 0 for bits in BITS.values())

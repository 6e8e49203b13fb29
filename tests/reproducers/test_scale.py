"""Sizes scaled down: by hand, and what has to hold for any arguments."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tracelens.reproducers.arguments import SMALL, TensorArgument, dense, scaled, tensors


def bf16(*shape: int, stride: tuple[int, ...] | None = None) -> TensorArgument:
    return TensorArgument("bfloat16", shape, dense(shape) if stride is None else stride)


def shapes(found: list[Any]) -> list[tuple[int, ...]]:
    return [one.shape for one in tensors(found)]


def span(one: TensorArgument) -> int:
    """Elements from the first to the last."""
    return 1 + sum((size - 1) * step for size, step in zip(one.shape, one.stride, strict=True))


def test_what_fits_stays_as_it_is() -> None:
    call = [bf16(1000, 500), bf16(500, 100), 1, None, [2.0]]
    assert scaled("aten::mm", call, 500_000) == call


def test_equal_sizes_stay_equal() -> None:
    # 4096 * 1024 elements and at most 2 ** 16: by 8.
    found = scaled("aten::mm", [bf16(4096, 1024), bf16(1024, 512)], 1 << 16)
    assert found == [bf16(512, 128), bf16(128, 64)]


def test_the_least_power_of_two() -> None:
    assert shapes(scaled("aten::mm", [bf16(128, 128)], 64 * 64)) == [(64, 64)]
    assert shapes(scaled("aten::mm", [bf16(128, 128)], 64 * 64 - 1)) == [(32, 32)]


def test_multiples_of_16_stay_such() -> None:
    # 1408 = 16 * 88 and 2816; by 64 they are 22 and 44, and up to the next multiple 32 and 48.
    found = scaled("aten::_grouped_mm", [bf16(24576, 1408), bf16(64, 1408, 2816)], 1 << 17)
    assert shapes(found) == [(384, 32), (64, 32, 48)]


def test_other_sizes_are_rounded_up() -> None:
    assert shapes(scaled("aten::add", [bf16(1001, 99)], 501 * 50)) == [(501, 50)]


def test_small_sizes_stay() -> None:
    # Heads and head dimension: of three sizes only one is above 64.
    found = scaled("aten::add", [bf16(2, 16, 2048, 64)], 1 << 16)
    assert shapes(found) == [(2, 16, 32, 64)]
    assert SMALL == 64


def test_as_small_as_it_gets() -> None:
    assert shapes(scaled("aten::add", [bf16(64, 64, 4096)], 1000)) == [(64, 64, 16)]
    assert shapes(scaled("aten::add", [bf16(64, 64, 4095)], 1000)) == [(64, 64, 1)]
    assert shapes(scaled("aten::add", [bf16(64, 64)], 1000)) == [(64, 64)]


def test_numbers_follow_their_size() -> None:
    # The number of weights of a gradient; the index of padding is none.
    call = [bf16(4096, 2048), TensorArgument("int64", (4096,), (1,)), 32768, -1, False]
    found = scaled("aten::embedding_dense_backward", call, 1 << 19)
    assert found[0] == bf16(1024, 512)
    assert found[2:] == [32768, -1, False]
    found = scaled("aten::expand", [bf16(4096, 1), [4096, 4096], 4096.0, True], 1024)
    assert found == [bf16(1024, 1), [1024, 1024], 4096.0, True]


def test_a_transposed_tensor_stays_dense() -> None:
    found = scaled("aten::mm", [bf16(1024, 512, stride=(1, 1024))], 1 << 17)
    assert found == [bf16(512, 256, stride=(1, 512))]
    found = scaled("aten::add", [bf16(8, 128, 16, 256, stride=(524288, 256, 32768, 1))], 1 << 20)
    assert found == [bf16(8, 64, 16, 128, stride=(131072, 128, 8192, 1))]


def test_expanded_dimensions_stay() -> None:
    found = scaled("aten::add", [bf16(4096, 1024, stride=(0, 1)), bf16(1024, 4096, stride=(1, 0))], 1 << 20)
    assert found == [bf16(2048, 512, stride=(0, 1)), bf16(512, 2048, stride=(1, 0))]


def test_overlaps_stay() -> None:
    # Windows of 1024 that begin every 256.
    found = scaled("aten::bmm", [bf16(8, 128, 1024, stride=(32768, 256, 1))], 1 << 18)
    assert found == [bf16(8, 64, 512, stride=(8192, 128, 1))]


def test_gaps_stay_in_proportion() -> None:
    # A third of the columns of a row: query of query, key and value in one.
    found = scaled("aten::add", [bf16(4096, 1024, stride=(3072, 1))], 1 << 20)
    assert found == [bf16(2048, 512, stride=(1536, 1))]


def test_a_step_inside_rows_stays() -> None:
    assert scaled("aten::add", [bf16(256, stride=(2,))], 128) == [bf16(128, stride=(2,))]


def test_of_convolutions_only_the_batch() -> None:
    call = [bf16(128, 3, 224, 224), bf16(768, 3, 16, 16), bf16(768), [0, 0], [16, 16], [1, 1], 1]
    found = scaled("aten::miopen_convolution", call, 1 << 22)
    assert found == [bf16(16, 3, 224, 224), *call[1:]]
    for op in ("aten::max_pool2d_with_indices", "aten::upsample_nearest2d", "aten::native_group_norm"):
        # As a multiple of 16 it has 16 at least.
        assert shapes(scaled(op, [bf16(128, 64, 56, 56)], 1)) == [(16, 64, 56, 56)]
        assert shapes(scaled(op, [bf16(10, 64, 56, 56)], 1)) == [(1, 64, 56, 56)]


def test_a_batch_that_is_also_a_channel_stays() -> None:
    call = [bf16(64, 64, 56, 56), bf16(128, 64, 3, 3)]
    assert scaled("aten::convolution_backward", call, 1) == call


def test_lists_are_scaled_too() -> None:
    call = [[bf16(4096, 128), bf16(4096, 256)], 1]
    assert scaled("aten::cat", call, 1 << 18) == [[bf16(2048, 64), bf16(2048, 128)], 1]


def test_other_values_stay() -> None:
    index = TensorArgument("int64", (4096,), (1,), "indices", (7,))
    assert scaled("aten::gather", [index], 1024) == [TensorArgument("int64", (1024,), (1,), "indices", (7,))]


sizes = st.sampled_from([1, 2, 3, 16, 48, 64, 65, 96, 100, 128, 160, 255, 256, 1000, 4096])


@st.composite
def arguments(draw: st.DrawFn) -> list[Any]:
    """Tensors with strides of any order, some expanded; numbers among them."""
    found: list[Any] = []
    for shape in draw(st.lists(st.lists(sizes, max_size=4), min_size=1, max_size=3)):
        order = draw(st.permutations(range(len(shape))))
        stride, step = [0] * len(shape), 1
        for dim in order:
            stride[dim] = step
            step *= shape[dim]
        for dim in range(len(shape)):
            if draw(st.integers(0, 5)) == 0:
                stride[dim] = 0
        found.append(TensorArgument("float32", tuple(shape), tuple(stride)))
    numbers = draw(st.lists(sizes | st.booleans() | st.floats(0, 1), max_size=3))
    return [*found, *numbers]


@given(arguments(), st.integers(1, 1 << 16))
def test_what_holds_for_any_arguments(call: list[Any], most: int) -> None:
    found = scaled("aten::anything", call, most)
    pairs: dict[int, int] = {}
    for old, new in zip(call, found, strict=True):
        both = [(old, new)]
        if isinstance(old, TensorArgument):
            both = list(zip(old.shape, new.shape, strict=True))
            # What is expanded stays so, and nothing else becomes it.
            assert [step == 0 for step in old.stride] == [step == 0 for step in new.stride]
        elif not isinstance(old, int) or isinstance(old, bool):
            assert repr(new) == repr(old)
            continue
        for before, after in both:
            # Equal sizes stay equal; a number that is no size stays.
            if any(before in one.shape for one in tensors(call)):
                assert pairs.setdefault(before, after) == after
            assert 0 < after <= before
            assert after == before or before > SMALL
            assert before % 16 or after % 16 == 0
    largest = max(one.numel for one in tensors(found))
    least = all(after == (before if before <= SMALL else 1 if before % 16 else 16)
                for before, after in pairs.items())  # fmt: skip
    assert largest <= most or least


@given(arguments(), st.integers(1, 1 << 16))
def test_dense_stays_dense(call: list[Any], most: int) -> None:
    for old, new in zip(tensors(call), tensors(scaled("aten::anything", call, most)), strict=True):
        if 0 not in old.stride:  # any order of dimensions is dense here
            assert span(new) == new.numel == prod(new.shape)


@given(st.integers(65, 4096), st.integers(65, 4096), st.integers(1, 64), st.integers(1, 1 << 16))
def test_overlapping_stays_overlapping(rows: int, columns: int, step: int, most: int) -> None:
    one = TensorArgument("float32", (rows, columns), (step, 1))
    assert span(one) < one.numel
    (new,) = tensors(scaled("aten::anything", [one], most))
    assume(new.shape[0] > 1)
    assume(new.shape[1] > 1)
    assert span(new) <= new.numel
    assert new.stride[1] == 1


@pytest.mark.parametrize("most", [1, 1 << 10, 1 << 16])
def test_scaling_twice_is_scaling_once(most: int) -> None:
    call = [bf16(4096, 1024), bf16(1024, 512)]
    once = scaled("aten::mm", call, most)
    assert scaled("aten::mm", once, max(one.numel for one in tensors(once))) == once

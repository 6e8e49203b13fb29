"""Copies, fills, concatenations, padding, triangles."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.costs.recorded import costed
from tracelens.costs import OpCall, OpCost, Uncounted, find
from tracelens.costs.movement import upper

CAT = "void at::native::(anonymous namespace)::CatArrayBatchedCopy<"


def moved(name: str, *arguments: object) -> tuple[int, int]:
    cost = costed(name, *arguments)
    assert cost.flops == 0
    return cost.read_bytes, cost.write_bytes


def called(call: OpCall) -> OpCost:
    model = find(call.name)
    assert model is not None
    return model.function(call)


def test_copy_reads_the_source_only() -> None:
    assert moved("aten::copy_", "bf16 2 16 2048 64", "fp32 2 16 2048 64", "False") == (4 << 22, 2 << 22)
    assert moved("aten::copy_", "fp32 6 4", "fp32 4", "False") == (16, 96)
    assert moved("aten::clone", "bf16 6 4", None) == (48, 48)
    assert moved("aten::_to_copy", "bf16 6 4", 6, None, None, None, "False", None) == (48, 96)
    assert moved("aten::_to_copy", "bf16 6 4", None, 0, "cuda:0", None, "False", None) == (48, 48)


def test_expanded_sources_are_read_once() -> None:
    call = OpCall("aten::copy_", [[4, 512], [4, 512], []], ["bf16", "bf16", ""], [], [[512, 1], [0, 1], []])
    assert (called(call).read_bytes, called(call).write_bytes) == (2 * 512, 2 * 2048)


def concatenated(kernel: str, *shapes: list[int], out: str = "") -> OpCost:
    outs = ([8], out) if out else ([], "")
    return called(
        OpCall("aten::cat", [[*shapes], [], outs[0]], ["", "", outs[1]], ["", "-1", ""], kernel=kernel)
    )


@pytest.mark.parametrize(
    ("kernel", "width", "dtype"),
    [
        (CAT + "at::native::(anonymous namespace)::OpaqueType<2u>, unsigned int, 4, 64, 64>(", 2, ""),
        (CAT + "at::native::(anonymous namespace)::OpaqueType<8>, unsigned int, 4, 64, 64>(", 8, ""),
        (CAT + "float, unsigned int, 2, 128, 1>(float*, ", 4, "fp32"),
        (CAT + "c10::BFloat16, unsigned int, 2, 128, 1>(", 2, "bf16"),
        (CAT.replace("Copy<", "Copy_aligned16_contig<") + "long, unsigned int, 2, 128, 1>(", 8, "i64"),
    ],
)
def test_cat_takes_the_element_size_from_the_kernel(kernel: str, width: int, dtype: str) -> None:
    # As recorded on MI300X: two (16, 16, 559, 32).
    cost = concatenated(kernel, [16, 16, 559, 32], [16, 16, 559, 32])
    count = 2 * 16 * 16 * 559 * 32 * width
    assert (cost.read_bytes, cost.write_bytes, cost.dtype) == (count, count, dtype)
    assert cost.dims == (("tensors", 2),)


def test_cat_into_a_given_result() -> None:
    assert concatenated("", [3, 1], [5], out="i32").read_bytes == 32


def test_cat_without_sizes() -> None:
    with pytest.raises(Uncounted, match="element type"):
        concatenated("Memcpy DtoD (Device -> Device)", [3], [5])
    with pytest.raises(Uncounted, match="30 tensors"):
        concatenated(CAT + "float, 2>")
    with pytest.raises(Uncounted, match="no shapes"):
        costed("aten::cat")


def test_chunk_cat_pads() -> None:
    call = OpCall("aten::_chunk_cat", [[[7], [9]], [], [], [2, 10]], ["", "", "", "fp32"], kernel="f<c10::x>")
    assert (called(call).read_bytes, called(call).write_bytes) == (4 * 16, 4 * 20)


def test_fill() -> None:
    assert moved("aten::fill_", "bf16 64 2816 2048", 0) == (0, 2 * 64 * 2816 * 2048)
    assert moved("aten::fill_", "bf16 8", "fp32") == (4, 16)
    assert moved("aten::zero_", "fp32 8") == (0, 32)
    assert moved("aten::new_zeros", "bf16 6 4", "[3, 4]", None) == (0, 24)
    assert moved("aten::new_full", "bf16 6 4", "[3, 4]", 1, 6) == (0, 48)
    assert moved("aten::fill_diagonal_", "fp32 6 4", 0, "False") == (0, 16)


def test_padding() -> None:
    assert moved("aten::constant_pad_nd", "bf16 6 4", "[1, 2]", 0) == (48, 2 * 6 * 7)
    assert moved("aten::constant_pad_nd", "bf16 6 4", "[0, 0, -1, 0]", 0) == (48, 2 * 5 * 4)
    assert moved("aten::reflection_pad1d", "fp32 2 3 8", "[2, 1]") == (192, 4 * 2 * 3 * 11)
    assert costed("aten::reflection_pad1d_backward", "fp32 2 3 11", "fp32 2 3 8", "[2, 1]").write_bytes == 192
    with pytest.raises(Uncounted, match="padding"):
        costed("aten::constant_pad_nd", "bf16 6 4", None, 0)


def test_triangles() -> None:
    # A 4 x 4 matrix has 10 elements on and above its diagonal, 6 above it.
    assert moved("aten::triu", "fp32 2 4 4", 0) == (4 * 20, 4 * 32)
    assert moved("aten::triu", "fp32 2 4 4", 1) == (4 * 12, 4 * 32)
    assert moved("aten::tril", "fp32 2 4 4", 0) == (4 * 20, 4 * 32)
    assert moved("aten::tril_", "fp32 2 4 4", 0) == (0, 4 * 12)
    with pytest.raises(Uncounted, match="2 or more"):
        costed("aten::triu", "fp32 4", 0)


@given(st.integers(0, 9), st.integers(0, 9), st.integers(-12, 12))
def test_upper(rows: int, columns: int, diagonal: int) -> None:
    assert upper(rows, columns, diagonal) == sum(
        j - i >= diagonal for i in range(rows) for j in range(columns)
    )


def test_repeats() -> None:
    assert moved("aten::repeat", "bf16 6 4", "[2, 3, 1]") == (48, 6 * 48)
    assert moved("aten::repeat_interleave", "i64 2", 3) == (16, 24)
    assert moved("aten::repeat_interleave", "bf16 6 4", 3, 0, None) == (48, 144)
    with pytest.raises(Uncounted, match="on the data"):
        costed("aten::repeat_interleave", "bf16 6 4", "i64 6", 0, None)
    with pytest.raises(Uncounted, match="no recorded value"):
        costed("aten::repeat_interleave", "i64 2", None)


def test_views() -> None:
    assert moved("aten::slice_backward", "bf16 2 4", "[6, 4]", 0, 1, 3, 1) == (16, 48)
    assert moved("aten::select_backward", "bf16 4", "[6, 4]", 0, 1) == (8, 48)
    assert moved("aten::slice_scatter", "bf16 6 4", "bf16 2 4", 0, 0, 2, 1) == (48, 48)
    with pytest.raises(Uncounted, match="sizes"):
        costed("aten::slice_backward", "bf16 2 4", None, 0, 1, 3, 1)

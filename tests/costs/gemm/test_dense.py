"""Matrix products against hand-worked counts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.costs import OpCall, OpCost, Uncounted, find

SIZES = st.integers(0, 512)


def counted(call: OpCall) -> OpCost:
    model = find(call.name)
    assert model is not None
    return model.function(call)


def test_mm() -> None:
    op_cost = counted(OpCall("aten::mm", [[4096, 11008], [11008, 4096]], ["bf16", "bf16"]))
    # 2 · 4096 · 4096 · 11008; operands 4096 · 11008 · 2 bytes each, result 4096 · 4096 · 2.
    assert op_cost == OpCost(
        369_367_187_456, 180_355_072, 33_554_432, "bf16", "matrix",
        dims=(("M", 4096), ("N", 4096), ("K", 11008)),
    )  # fmt: skip


@given(SIZES, SIZES, SIZES)
def test_mm_of_any_size(m: int, n: int, k: int) -> None:
    op_cost = counted(OpCall("aten::mm", [[m, k], [k, n]], ["fp32", "fp32"]))
    assert op_cost.flops == 2 * m * n * k
    assert op_cost.read_bytes + op_cost.write_bytes == 4 * (m * k + k * n + m * n)


def test_the_kernel_tells_tf32() -> None:
    shapes, dtypes = [[16, 8], [8, 4]], ["fp32", "fp32"]
    kernels = {
        "ampere_sgemm_128x64_nn": "fp32",
        "sm80_xmma_gemm_f32f32_tf32f32_f32_nn": "tf32",
        "cutlass_80_tensorop_s1688gemm_256x64_16x4_tn_align1": "tf32",
    }
    for kernel, dtype in kernels.items():
        assert counted(OpCall("aten::mm", shapes, dtypes, kernel=kernel)).dtype == dtype


def test_addmm_reads_its_bias_unless_beta_is_zero() -> None:
    shapes, dtypes = [[4], [2, 3], [3, 4]], ["fp16"] * 3
    with_bias = counted(OpCall("aten::addmm", shapes, dtypes, ["", "", "", "1", "1"]))
    # (2·3 + 3·4 + 4) · 2 bytes read, 2·4 · 2 written, 2·2·4·3 FLOPs.
    assert (with_bias.flops, with_bias.read_bytes, with_bias.write_bytes) == (48, 44, 16)
    without = counted(OpCall("aten::addmm", shapes, dtypes, ["", "", "", "0", "1"]))
    assert without.read_bytes == 36
    odd = counted(OpCall("aten::addmm", shapes, dtypes, ["", "", "", "x", "1"]))
    assert odd.read_bytes == 44


def test_bmm_and_baddbmm() -> None:
    op_cost = counted(OpCall("aten::bmm", [[8, 128, 64], [8, 64, 256]], ["bf16", "bf16"]))
    # 2 · 8 · 128 · 256 · 64.
    assert op_cost.flops == 33_554_432
    assert op_cost.dims == (("B", 8), ("M", 128), ("N", 256), ("K", 64))
    added = counted(OpCall("aten::baddbmm", [[8, 128, 256], [8, 128, 64], [8, 64, 256]], ["bf16"] * 3))
    assert added.flops == op_cost.flops
    assert added.read_bytes == op_cost.read_bytes + 8 * 128 * 256 * 2


def test_linear_flattens_the_leading_dimensions() -> None:
    op_cost = counted(OpCall("aten::linear", [[4, 512, 1024], [3072, 1024], [3072]], ["bf16"] * 3))
    # 2 · 2048 · 3072 · 1024.
    assert op_cost.flops == 12_884_901_888
    assert op_cost.read_bytes == 2 * (2048 * 1024 + 3072 * 1024 + 3072)
    assert op_cost.write_bytes == 2 * 2048 * 3072


@pytest.mark.parametrize(
    ("left", "right", "flops", "written"),
    [
        ([5], [5], 10, 1),
        ([3, 5], [5], 30, 3),
        ([5], [5, 2], 20, 2),
        ([7, 1, 3, 5], [4, 5, 2], 2 * 28 * 3 * 2 * 5, 28 * 3 * 2),
    ],
)
def test_matmul_broadcasts(left: list[int], right: list[int], flops: int, written: int) -> None:
    op_cost = counted(OpCall("aten::matmul", [left, right], ["fp32", "fp32"]))
    assert (op_cost.flops, op_cost.write_bytes) == (flops, 4 * written)


def test_addmv_skips_its_addend() -> None:
    assert counted(OpCall("aten::addmv", [[3], [3, 5], [5]], ["fp32"] * 3)).flops == 30


def test_scaled_mm_counts_scales_and_writes_bf16() -> None:
    shapes = [[64, 128], [128, 32], [1], [1]]
    op_cost = counted(OpCall("aten::_scaled_mm", shapes, ["fp8e4m3", "fp8e5m2", "fp32", "fp32"]))
    # 2 · 64 · 32 · 128; 64·128 + 128·32 + 2·4 bytes read; 64·32·2 written; the wider of both fp8 types.
    assert (op_cost.flops, op_cost.read_bytes, op_cost.write_bytes) == (524_288, 12_296, 4096)
    assert op_cost.dtype == "fp8e5m2"


def test_packed_fp4_has_twice_the_elements() -> None:
    op_cost = counted(OpCall("aten::_scaled_mm", [[64, 128], [128, 32]], ["fp4x2", "fp4x2"]))
    assert op_cost.dims == (("M", 64), ("N", 32), ("K", 256))
    assert op_cost.flops == 2 * 64 * 32 * 256


def test_int_mm_writes_int32() -> None:
    op_cost = counted(OpCall("aten::_int_mm", [[4, 8], [8, 16]], ["i8", "i8"]))
    assert (op_cost.dtype, op_cost.write_bytes) == ("i8", 4 * 16 * 4)


def test_an_expanded_operand_is_read_once() -> None:
    call = OpCall("aten::bmm", [[8, 4, 4], [8, 4, 4]], ["fp32"] * 2, strides=[[0, 4, 1], [16, 4, 1]])
    assert counted(call).read_bytes == 4 * (16 + 128)


@pytest.mark.parametrize(
    ("name", "shapes", "reason"),
    [
        ("aten::mm", [[2, 3], [4, 5]], "disagree on the inner dimension .3 and 4."),
        ("aten::mm", [[2], [4, 5]], "1 dimensions instead of 2"),
        ("aten::bmm", [[2, 3], [3, 5]], "2 dimensions instead of 3"),
        ("aten::linear", [[2, 3], [4, 5]], "disagree"),
        ("aten::mm", [], "no shapes recorded"),
    ],
)
def test_what_cannot_be_counted_is_told(name: str, shapes: list[list[int]], reason: str) -> None:
    with pytest.raises(Uncounted, match=reason):
        counted(OpCall(name, shapes, ["bf16"] * len(shapes)))

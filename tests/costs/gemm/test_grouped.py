"""Grouped GEMMs against hand-worked counts, and as dsv2_grouped records them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.costs import OpCall, OpCost, Uncounted, find

SIZES = st.integers(1, 300)


def counted(call: OpCall) -> OpCost:
    model = find(call.name)
    assert model is not None
    return model.function(call)


def test_rows_in_groups_as_recorded() -> None:
    shapes = [[24576, 2048], [64, 2048, 2816], [64], [], []]
    strides = [[2048, 1], [5767168, 1, 2048], [1], [], []]
    op_cost = counted(OpCall("aten::_grouped_mm", shapes, ["bf16", "bf16", "i32", "", ""], [""] * 5, strides))
    # 2 · 24576 · 2048 · 2816; rows 100,663,296 bytes, weights 64 · 2048 · 2816 · 2; result 24576 · 2816 · 2.
    assert op_cost.flops == 283_467_841_536
    assert op_cost.read_bytes == 100_663_296 + 738_197_504
    assert op_cost.write_bytes == 138_412_032
    assert op_cost.dims == (("G", 64), ("M", 24576), ("N", 2816), ("K", 2048))
    assert (op_cost.dtype, op_cost.engine) == ("bf16", "matrix")
    assert op_cost.note == "upper bound: every row in a group, every group with rows"


def test_weight_gradients_as_recorded() -> None:
    shapes = [[2816, 24576], [24576, 2048], [64], [], []]
    op_cost = counted(OpCall("aten::_grouped_mm", shapes, ["bf16", "bf16", "i32", "", ""]))
    # As many FLOPs as forward; one (2816, 2048) matrix for each of the 64 groups is written.
    assert op_cost.flops == 283_467_841_536
    assert op_cost.write_bytes == 64 * 2816 * 2048 * 2
    assert op_cost.note == "upper bound: every row in a group"


@given(SIZES, SIZES, SIZES, st.integers(1, 16))
def test_forward_and_both_gradients_do_the_same_work(t: int, k: int, n: int, groups: int) -> None:
    dtypes = ["bf16", "bf16", "i32"]
    shapes = ([[t, k], [groups, k, n]], [[t, n], [groups, n, k]], [[k, t], [t, n]])
    flops = {counted(OpCall("aten::_grouped_mm", [*pair, [groups]], dtypes)).flops for pair in shapes}
    assert flops == {2 * t * k * n}


def test_rows_behind_the_last_group_are_left_out() -> None:
    """A buffer of 24,576 rows of which 6,000 lie in groups, forward and for both gradients."""
    dtypes, known = ["bf16", "bf16", "i32"], {24576: 6000}
    for a, b, cut in (
        ([24576, 2048], [64, 2048, 2816], "M"),
        ([64, 2816, 2048], [2048, 24576], "N"),
        ([2816, 24576], [24576, 2048], "K"),
    ):
        call = OpCall("aten::_grouped_mm", [a, b, [64]], dtypes, group_rows=known)
        op_cost, all_rows = counted(call), counted(call._replace(group_rows={}))
        assert op_cost.flops == 2 * 6000 * 2048 * 2816
        assert dict(op_cost.dims) == dict(all_rows.dims) | {cut: 6000}
        assert op_cost.read_bytes + op_cost.write_bytes < all_rows.read_bytes + all_rows.write_bytes
        assert op_cost.note == "rows in groups: as many as the recorder noted of another step"
    batch = OpCall("aten::_grouped_mm", [[4, 24576, 16], [4, 16, 32]], ["fp16", "fp16"], group_rows=known)
    assert counted(batch).flops == 2 * 4 * 24576 * 16 * 32


def test_calls_of_many_sizes_are_counted_as_each_alone() -> None:
    """Of some the recorder noted the rows, and of others not."""
    model = find("aten::_grouped_mm")
    assert model is not None
    shapes = [[[rows, 32], [4, 32, 16], [4]] for rows in (64, 128, 65, 200, 128, 1)]
    call = OpCall("aten::_grouped_mm", shapes[0], ["bf16", "bf16", "i32"], group_rows={128: 20, 200: 150})
    every = model.count_alike(call, shapes, [-1] * len(shapes))
    assert every == [counted(call._replace(shapes=of_call)) for of_call in shapes]
    rows = [64, 20, 65, 150, 20, 1]
    assert [one.flops for one in every if isinstance(one, OpCost)] == [2 * count * 32 * 16 for count in rows]


def test_columns_in_groups_and_batches() -> None:
    columns = counted(OpCall("aten::_grouped_mm", [[4, 8, 16], [16, 100], [4]], ["fp16", "fp16", "i32"]))
    assert (columns.flops, columns.write_bytes) == (2 * 8 * 100 * 16, 8 * 100 * 2)
    batch = counted(OpCall("aten::_grouped_mm", [[4, 8, 16], [4, 16, 32]], ["fp16", "fp16"]))
    assert (batch.flops, batch.write_bytes, batch.note) == (2 * 4 * 8 * 16 * 32, 4 * 8 * 32 * 2, "")


def test_scales_and_type_of_the_result() -> None:
    shapes = [[64, 32], [4, 32, 16], [64], [4, 16], [4]]
    dtypes = ["fp8e4m3", "fp8e4m3", "fp32", "fp32", "i32"]
    op_cost = counted(OpCall("aten::_scaled_grouped_mm", shapes, dtypes))
    assert op_cost.read_bytes == 64 * 32 + 4 * 32 * 16 + 4 * (64 + 64)
    assert (op_cost.write_bytes, op_cost.dtype) == (64 * 16 * 2, "fp8e4m3")
    wide = counted(OpCall("aten::_scaled_grouped_mm", shapes, dtypes, ["", "", "", "", "", "", "", "6"]))
    assert wide.write_bytes == 64 * 16 * 4


def test_packed_fp4_has_twice_the_elements() -> None:
    shapes = [[64, 32], [4, 32, 16], [], [], [], [], [], [], [4]]
    dtypes = ["fp4x2", "fp4x2", "", "", "", "", "", "", "i32"]
    assert counted(OpCall("aten::_scaled_grouped_mm_v2", shapes, dtypes)).flops == 2 * 64 * 64 * 16


@pytest.mark.parametrize("weight", [[8, 1408, 2048], [8, 2048, 1408]])
def test_primus_turbo_takes_either_layout(weight: list[int]) -> None:
    shapes = [[4096, 2048], weight, [8], [8], [], []]
    op_cost = counted(
        OpCall("primus_turbo::grouped_gemm_impl", shapes, ["bf16", "bf16", "i64", "i64", "", ""])
    )
    assert op_cost.flops == 2 * 4096 * 2048 * 1408
    assert op_cost.write_bytes == 4096 * 1408 * 2
    assert op_cost.dims == (("G", 8), ("M", 4096), ("N", 1408), ("K", 2048))


def test_primus_turbo_variable_k() -> None:
    shapes = [[24576, 1408], [24576, 2048], [64], [64]]
    name = "primus_turbo_cpp_extension::ck_grouped_gemm_variable_k"
    op_cost = counted(OpCall(name, shapes, ["bf16", "bf16", "i64", "i64"]))
    assert op_cost.flops == 2 * 24576 * 1408 * 2048
    assert op_cost.write_bytes == 64 * 1408 * 2048 * 2


def test_primus_turbo_accumulates_into_its_result() -> None:
    shapes = [[256, 32], [256, 64], [4], [5], [], [], [], [], [], [4, 32, 64]]
    dtypes = ["bf16", "bf16", "i64", "i64", "", "", "", "", "", "fp32"]
    op_cost = counted(OpCall("primus_turbo::grouped_gemm_variable_k_accum_impl", shapes, dtypes))
    assert (op_cost.flops, op_cost.write_bytes) == (2 * 256 * 32 * 64, 4 * 4 * 32 * 64)
    assert op_cost.read_bytes == 2 * 256 * (32 + 64) + 4 * 4 * 32 * 64


def test_primus_turbo_fp8_reads_scales() -> None:
    shapes = [[128, 64], [4, 32, 64], [1], [1], [4], [4]]
    dtypes = ["fp8e4m3", "fp8e4m3", "fp32", "fp32", "i64", "i64"]
    op_cost = counted(
        OpCall("primus_turbo::grouped_gemm_fp8_impl", shapes, dtypes, [""] * 6 + ["False", "True", "5"])
    )
    assert (op_cost.flops, op_cost.read_bytes) == (2 * 128 * 64 * 32, 128 * 64 + 4 * 32 * 64 + 8)
    assert op_cost.write_bytes == 128 * 32 * 2


def test_cutlass_moe_has_its_result_first() -> None:
    shapes = [[100, 32], [100, 64], [4, 64, 32], [100, 1], [4, 32], [4]]
    op_cost = counted(
        OpCall("_C::cutlass_moe_mm", shapes, ["bf16", "fp8e4m3", "fp8e4m3", "fp32", "fp32", "i32"])
    )
    assert (op_cost.flops, op_cost.write_bytes, op_cost.dtype) == (2 * 100 * 64 * 32, 6400, "fp8e4m3")


def test_grouped_linear_finds_its_weights() -> None:
    one_each = OpCall(
        "_GroupedLinear", [[96, 64], [], [32, 64], [32, 64], [32, 64]], ["bf16", "", *["bf16"] * 3]
    )
    stacked = OpCall("GroupedGemm", [[96, 64], [3, 64, 32], [3]], ["bf16", "bf16", "i64"])
    for call in (one_each, stacked):
        op_cost = counted(call)
        assert op_cost.flops == 2 * 96 * 64 * 32
        assert op_cost.read_bytes == 2 * (96 * 64 + 3 * 64 * 32)
        assert op_cost.dims[0] == ("G", 3)


def test_backward_is_both_gradients_of_the_forward() -> None:
    forward = OpCall("GroupedGemm", [[96, 64], [3, 64, 32], [3]], ["bf16", "bf16", "i64"])
    op_cost = counted(OpCall("GroupedGemmBackward", [[96, 32]], ["bf16"], forward=forward))
    assert op_cost.flops == 4 * 96 * 64 * 32
    with pytest.raises(Uncounted, match="forward op is not in the trace"):
        counted(OpCall("GroupedGemmBackward", [[96, 32]], ["bf16"]))


@pytest.mark.parametrize(
    ("name", "shapes", "reason"),
    [
        ("aten::_grouped_mm", [], "no shapes"),
        ("aten::_grouped_mm", [[4], [4, 4, 4], [4]], "without 2 or 3 dimensions"),
        ("aten::_grouped_mm", [[4, 5], [4, 6, 4], [4]], "disagree on the inner dimension"),
        ("aten::_grouped_mm", [[2, 4, 5], [3, 5, 4]], "disagree on the number of groups"),
        ("aten::_grouped_mm", [[4, 5], [5, 4]], "argument 2"),
        ("aten::_grouped_mm", [[4, 5], [5, 4], [2, 2]], "number of groups not recorded"),
        ("primus_turbo::grouped_gemm_impl", [[4, 5], [2, 6, 7], [2]], "disagree on the inner"),
        ("primus_turbo::grouped_gemm_variable_k_impl", [[4, 5], [6, 7], [2]], "number of rows .4 and 6."),
        ("primus_turbo::grouped_gemm_combine_impl", [[4, 5], [2, 5, 7]], "fused with an all-to-all"),
        ("_GroupedLinear", [[4, 5], [3]], "weights of the groups not recorded"),
        ("_GroupedLinear", [[5]], "rows of a grouped GEMM"),
    ],
)
def test_what_cannot_be_counted_is_told(name: str, shapes: list[Any], reason: str) -> None:
    with pytest.raises(Uncounted, match=reason):
        counted(OpCall(name, shapes, ["bf16"] * len(shapes)))

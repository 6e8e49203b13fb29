"""GEMMs of libraries: where each has its operands, against hand-worked counts."""

from typing import Any

import pytest

from tracelens.costs.call import OpCall, Uncounted
from tracelens.costs.model import OpCost, find

M, N, K = 256, 512, 128
FLOPS = 2 * M * N * K


def counted(call: OpCall) -> OpCost:
    model = find(call.name)
    assert model is not None
    return model.function(call)


@pytest.mark.parametrize("weight", [[N, K], [K, N]])
@pytest.mark.parametrize("name", ["aiter::gemm_a8w8_blockscale", "vllm::rocm_aiter_gemm_w8a8"])
def test_operands_first(name: str, weight: list[int]) -> None:
    shapes = [[M, K], weight, [M, 1], [1, N]]
    op_cost = counted(OpCall(name, shapes, ["fp8e4m3", "fp8e4m3", "fp32", "fp32"]))
    # The result is not an argument: bf16.
    assert op_cost == OpCost(
        FLOPS,
        M * K + N * K + 4 * (M + N),
        2 * M * N,
        "fp8e4m3",
        "matrix",
        dims=(("M", M), ("N", N), ("K", K)),
    )


def test_a_given_result_is_written_and_not_read() -> None:
    shapes = [[M, K], [N, K], [M, 1], [1, N], [M, N]]
    op_cost = counted(OpCall("aiter::gemm_a8w8_asm", shapes, ["i8", "i8", "fp32", "fp32", "fp16"]))
    assert (op_cost.read_bytes, op_cost.write_bytes, op_cost.dtype) == (
        M * K + N * K + 4 * (M + N),
        2 * M * N,
        "i8",
    )


def test_leading_dimensions_are_rows() -> None:
    op_cost = counted(
        OpCall("vllm::rocm_unquantized_gemm", [[2, M // 2, K], [N, K], []], ["bf16", "bf16", ""])
    )
    assert (op_cost.flops, op_cost.write_bytes) == (FLOPS, 2 * M * N)


@pytest.mark.parametrize(
    ("name", "shapes", "dtypes"),
    [
        ("aiter::gemm_a4w4_asm", [[M, K // 2], [N, K // 2]], ["fp4x2", "fp4x2"]),
        ("aiter::gemm_a4w4", [[M, K // 2], [N, K // 2]], ["u8", "u8"]),
        ("_C::cutlass_scaled_fp4_mm", [[M, N], [M, K // 2], [N, K // 2]], ["bf16", "u8", "u8"]),
    ],
)
def test_packed_fp4(name: str, shapes: list[list[int]], dtypes: list[str]) -> None:
    op_cost = counted(OpCall(name, shapes, dtypes))
    assert (op_cost.flops, op_cost.dtype) == (FLOPS, "fp4")
    assert (op_cost.read_bytes, op_cost.write_bytes) == ((M + N) * K // 2, 2 * M * N)


def test_cutlass_has_its_result_first() -> None:
    shapes = [[M, N], [M, K], [K, N], [1], [1], [N]]
    op_cost = counted(
        OpCall("_C::cutlass_scaled_mm", shapes, ["fp16", "fp8e4m3", "fp8e4m3", "fp32", "fp32", "fp16"])
    )
    assert (op_cost.flops, op_cost.write_bytes) == (FLOPS, 2 * M * N)
    assert op_cost.read_bytes == M * K + K * N + 8 + 2 * N


def test_deep_gemm_has_scales_between() -> None:
    shapes = [[M, K], [M, 1], [N, K], [4, 1], [M, N]]
    op_cost = counted(OpCall("vllm::fp8_gemm_nt_op", shapes, ["fp8e4m3", "fp32", "fp8e4m3", "fp32", "bf16"]))
    assert (op_cost.flops, op_cost.read_bytes) == (FLOPS, M * K + N * K + 4 * (M + 4))


@pytest.mark.parametrize(
    ("a", "b", "flags"),
    [
        ([M, K], [K, N], ("False", "False")),
        ([M, K], [N, K], ("False", "True")),
        ([K, M], [K, N], ("True", "False")),
        ([K, M], [N, K], ("True", "True")),
    ],
)
def test_flags_of_primus_turbo(a: list[int], b: list[int], flags: tuple[str, str]) -> None:
    plain = OpCall(
        "primus_turbo::gemm_impl", [a, [], b, [], []], ["bf16", "", "bf16", "", ""],
        ["", flags[0], "", flags[1], "15"],
    )  # fmt: skip
    assert counted(plain) == OpCost(
        FLOPS, 2 * (M * K + K * N), 2 * M * N, "bf16", "matrix", dims=(("M", M), ("N", N), ("K", K))
    )
    scaled = OpCall(
        "primus_turbo::gemm_fp8_impl", [a, [1], [], b, [1], [], []],
        ["fp8e4m3", "fp32", "", "fp8e4m3", "fp32", "", ""], ["", "", flags[0], "", "", flags[1], "6"],
    )  # fmt: skip
    op_cost = counted(scaled)
    assert (op_cost.flops, op_cost.read_bytes, op_cost.write_bytes) == (FLOPS, M * K + K * N + 8, 4 * M * N)
    lt = OpCall(
        "primus_turbo_cpp_extension::hipblaslt_gemm", [a, [1], b, [1], [], [], []],
        ["fp8e4m3", "fp32", "fp8e4m3", "fp32", "", "", ""], ["", "", "", "", "15", *flags],
    )  # fmt: skip
    assert counted(lt).dims == (("M", M), ("N", N), ("K", K))


def test_packed_fp4_of_primus_turbo() -> None:
    shapes = [[M, K // 2], [M, 4], [], [N, K // 2], [N, 4], []]
    dtypes = ["fp4x2", "u8", "", "fp4x2", "u8", ""]
    op_cost = counted(
        OpCall("primus_turbo::gemm_fp4_impl", shapes, dtypes, ["", "", "False", "", "", "True"])
    )
    assert (op_cost.flops, op_cost.dtype) == (FLOPS, "fp4")


def test_sizes_given_as_numbers() -> None:
    shapes = [[1000], [10], [2000], [20], [], [], []]
    values = ["", "", "", "", str(M), str(N), str(K), "15"]
    op_cost = counted(OpCall("primus_turbo::gemm_fp6_impl", shapes, ["u8"] * 4 + [""] * 3, values))
    assert (op_cost.flops, op_cost.read_bytes, op_cost.write_bytes) == (FLOPS, 3030, 2 * M * N)
    assert op_cost.dtype == "fp6"


@pytest.mark.parametrize(
    ("name", "shapes", "reason"),
    [
        ("aiter::gemm_a8w8", [], "no shapes"),
        ("aiter::gemm_a8w8", [[4, 5], [6, 7]], "disagree on the inner dimension"),
        ("aiter::gemm_a8w8", [[4, 5], [6]], "without their dimensions"),
        ("primus_turbo::gemm_impl", [[4], [], [5, 6]], "without their dimensions"),
        ("primus_turbo::gemm_impl", [[4, 5], [], [6, 7]], "disagree on the inner dimension"),
        ("primus_turbo::gemm_fp6_impl", [[4]], "argument 4 has no recorded value"),
    ],
)
def test_what_cannot_be_counted_is_told(name: str, shapes: list[Any], reason: str) -> None:
    with pytest.raises(Uncounted, match=reason):
        counted(OpCall(name, shapes, ["bf16" if shape else "" for shape in shapes]))

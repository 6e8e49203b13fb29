"""GEMMs of libraries: where each has its operands, against hand-worked counts."""

from typing import Any

import pytest

from tests.costs.recorded import costed
from tracelens.costs import OpCall, OpCost, Uncounted, find

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


SCALES = ["fp32 256 1", "fp32 1 512"]


@pytest.mark.parametrize(
    "name",
    [
        "aiter::gfx950_a8w8_blockscale_asm",
        "sglang_profiler::fp8_utils_gemm_a8w8_blockscale_7",
        "sglang_profiler::gemm_a8w8_blockscale_gemm_a8w8_blockscale_12",
        "vllm::_rocm_aiter_preshuffled_per_token_w8a8_gemm",
        "vllm::rocm_aiter_triton_gemm_a8w8_blockscale",
    ],
)
def test_8_bit_gemms_with_scales_behind(name: str) -> None:
    result = ["bf16 256 512"] if name.startswith("aiter") else []
    cost = costed(name, "fp8e4m3 256 128", "fp8e4m3 512 128", *SCALES, *result)
    assert (cost.flops, cost.dtype) == (FLOPS, "fp8e4m3")
    assert (cost.read_bytes, cost.write_bytes) == (M * K + N * K + 4 * (M + N), 2 * M * N)


def test_block_scales_as_recorded_on_mi300x() -> None:
    """DeepSeek-V3's first projection of 1025 tokens, a scale for 128 elements and for 128 x 128 weights."""
    arguments = ("fp8e4m3 1025 7168", "fp8e4m3 2112 7168", "fp32 1025 56", "fp32 17 56", None)
    cost = costed("sglang_profiler::fp8_utils_gemm_a8w8_blockscale_12", *arguments)
    assert cost.flops == 2 * 1025 * 2112 * 7168 == 31_034_572_800
    assert cost.read_bytes == 1025 * 7168 + 2112 * 7168 + 4 * (1025 * 56 + 17 * 56)
    assert cost.write_bytes == 1025 * 2112 * 2


def test_assembly_kernels_have_their_result_in_the_middle() -> None:
    scaled = costed(
        "aiter::_gemm_a8w8_blockscale_bpreshuffle_asm", "fp8e4m3 256 128", "fp8e4m3 512 128", "fp16 256 512",
        *SCALES,
    )  # fmt: skip
    assert (scaled.read_bytes, scaled.write_bytes) == (M * K + N * K + 4 * (M + N), 2 * M * N)
    # Rows of the result and of the scales are padded: 250 rows in 256.
    fp4 = costed("aiter::_gemm_a4w4_asm", "fp4x2 250 64", "fp4x2 512 64", "fp8e8m0 256 4", "fp8e8m0 512 4",
                 "bf16 256 512")  # fmt: skip
    assert (fp4.flops, fp4.dtype) == (2 * 250 * N * K, "fp4")
    assert (fp4.read_bytes, fp4.write_bytes) == ((250 + N) * K // 2 + (256 + 512) * 4, 2 * 250 * N)


def test_workspaces_of_a_16_bit_gemm_are_not_read() -> None:
    name, operands = "aiter::_gemm_a16w16_asm", ("bf16 256 128", "bf16 512 128", "fp32 256 512", "u32 16 64")
    plain = costed(name, *operands)
    assert (plain.flops, plain.dtype) == (FLOPS, "bf16")
    assert (plain.read_bytes, plain.write_bytes) == (2 * (M * K + N * K), 4 * M * N)
    for more in (("bf16 512",), ("fp32 4 256 512", "bf16 512")):
        assert costed(name, *operands, *more).read_bytes == plain.read_bytes + 2 * N


def test_unscaled_launcher_with_its_bias() -> None:
    name = "sglang_profiler::gemm_kernels_flydsl_hgemm_3"
    cost = costed(name, "bf16 256 128", "bf16 512 128", None, "bf16 512")
    assert (cost.flops, cost.write_bytes) == (FLOPS, 2 * M * N)
    assert cost.read_bytes == 2 * (M * K + N * K + N)


def test_fp4_of_triton() -> None:
    pairs = ("u8 256 64", "u8 512 64", "u8 256 4", "u8 512 4", "15")
    cost = costed("aiter::gemm_afp4wfp4_", *pairs, "bf16 256 512")
    assert (cost.flops, cost.dtype, cost.write_bytes) == (FLOPS, "fp4", 2 * M * N)
    assert cost.read_bytes == (M + N) * (K // 2 + 4)
    assert costed("aiter::gemm_afp4wfp4_", *pairs) == cost


def test_rows_quantized_to_fp4_inside_the_op() -> None:
    name, weight = "vllm::gemm_with_dynamic_quant", ("u8 512 64", "u8 512 4")
    cost = costed(name, "bf16 256 128", *weight, "False", "15")
    assert (cost.flops, cost.dtype) == (FLOPS, "fp4")
    assert (cost.read_bytes, cost.write_bytes) == (2 * M * K + N * (K // 2 + 4), 2 * M * N)
    assert costed(name, "bf16 256 512", "bf16 256 128", *weight, None, "False", "15") == cost
    quantized = costed(name, "u8 256 64", *weight, "False", "15", "u8 256 4")
    assert (quantized.flops, quantized.read_bytes) == (FLOPS, (M + N) * (K // 2 + 4))
    with pytest.raises(Uncounted, match="neither operand order"):
        costed(name, "bf16 256 128", "u8 512 60", "u8 512 4")


def test_tensorrt_and_bitsandbytes() -> None:
    operands = ("fp8e4m3 256 128", "fp8e4m3 128 512", "fp32 1", "fp32 1")
    scaled = costed("trtllm::cublas_scaled_mm", *operands, None, "15")
    assert (scaled.flops, scaled.dtype) == (FLOPS, "fp8e4m3")
    assert (scaled.read_bytes, scaled.write_bytes) == (M * K + N * K + 8, 2 * M * N)
    sums = costed("bitsandbytes::int8_linear_matmul", "i8 2 128 128", "i8 512 128")
    assert (sums.flops, sums.dtype) == (FLOPS, "i8")
    assert (sums.read_bytes, sums.write_bytes) == (M * K + N * K, 4 * M * N)


@pytest.mark.parametrize("library", ["primus_turbo", "primus_turbo_cpp_extension"])
def test_hipblaslt_in_low_precision(library: str) -> None:
    flags = ("15", "False", "True", "False", "MX_BLOCKWISE")
    fp4 = costed(f"{library}::hipblaslt_gemm_fp4", "fp4x2 256 64", "fp8e8m0 256 4", "fp4x2 512 64",
                 "fp8e8m0 512 4", *flags)  # fmt: skip
    assert (fp4.flops, fp4.dtype) == (FLOPS, "fp4")
    assert (fp4.read_bytes, fp4.write_bytes) == ((M + N) * (K // 2 + 4), 2 * M * N)
    fp8 = ("fp8e4m3 256 128", "fp32 1", "fp8e4m3 512 128", "fp32 1", *flags)
    plain = costed(f"{library}::hipblaslt_gemm_fp8", *fp8)
    assert (plain.flops, plain.read_bytes, plain.write_bytes) == (FLOPS, (M + N) * K + 8, 2 * M * N)
    added = costed(f"{library}::hipblaslt_gemm_fp8", *fp8, "1.", "bf16 256 512")
    assert added.read_bytes == plain.read_bytes + 2 * M * N


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

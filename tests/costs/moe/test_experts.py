"""Experts in one fused op and in single GEMMs, against hand-worked counts."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.costs.recorded import costed, recorded
from tracelens.costs import OpCall, OpCost, Uncounted, find

T, H, E, K, F = 4096, 2048, 64, 6, 1408
"""Tokens, hidden size, experts, experts a token, inner size of an expert."""


def counted(call: OpCall) -> OpCost:
    model = find(call.name)
    assert model is not None
    return model.function(call)


def bytes_of(op_cost: OpCost) -> tuple[int, int]:
    return op_cost.read_bytes, op_cost.write_bytes


@pytest.mark.parametrize("name", ["vllm::outplace_fused_experts", "aiter::fused_moe_"])
def test_fused_experts(name: str) -> None:
    shapes = [[T, H], [E, 2 * F, H], [E, H, F], [T, K], [T, K]]
    op_cost = counted(OpCall(name, shapes, ["bf16", "bf16", "bf16", "fp32", "i32"]))
    # Gate and up, then down: 2 · T·K · (2·F·H + H·F) FLOPs.
    assert op_cost.flops == 2 * T * K * 3 * H * F
    assert bytes_of(op_cost) == (2 * T * H + 2 * E * 3 * H * F, 2 * T * H)
    assert op_cost.engine == "matrix"


def test_a_few_tokens_do_not_use_all_experts() -> None:
    shapes = [[2, H], [E, 2 * F, H], [E, H, F], [2, K], [2, K]]
    op_cost = counted(
        OpCall("vllm::inplace_fused_experts", shapes, ["bf16", "fp8e4m3", "fp8e4m3", "fp32", "i32"])
    )
    # 12 rows, at most 12 of 64 experts, a byte an element.
    assert op_cost.read_bytes == 2 * 2 * H + 12 * 3 * H * F
    assert op_cost.dtype == "fp8e4m3"


def test_experts_with_sorted_rows() -> None:
    shapes = [[T, H], [T, H], [E, 2 * F, H], [E, H, F]]
    call = OpCall("aiter::fmoe_g1u1", shapes, ["bf16", "fp8e4m3", "fp8e4m3", "fp8e4m3"], [""] * 8 + [str(K)])
    assert counted(call).flops == 2 * T * K * 3 * H * F
    stages = [[T, H], [E, 2 * F, H], [E, H, F], [9000], [300], [2], [T, K, F]]
    first = OpCall("aiter::ck_moe_stage1", stages, ["bf16"] * 3 + ["i32"] * 3 + ["bf16"], [""] * 7 + [str(K)])
    assert counted(first).flops == 2 * T * K * 2 * H * F
    assert counted(first).write_bytes == 2 * T * K * F
    second = OpCall("aiter::ck_moe_stage2", [[T, K, F], *stages[1:6], [T, H]], first.dtypes, first.values)
    assert counted(second).flops == 2 * T * K * H * F


@given(st.integers(0, 64), st.integers(1, 8), st.integers(1, 32))
def test_no_more_experts_are_read_than_there_are(tokens: int, k: int, experts: int) -> None:
    shapes = [[tokens, 16], [experts, 8, 16], [experts, 16, 4], [tokens, k], [tokens, k]]
    op_cost = counted(OpCall("vllm::inplace_fused_experts", shapes, ["bf16", "bf16", "bf16", "fp32", "i32"]))
    assert op_cost.read_bytes == 2 * (tokens * 16 + min(experts, tokens * k) * (8 * 16 + 16 * 4))


def test_block_scaled_experts_with_sorted_rows() -> None:
    shapes = [[T, H], [T, H], [E, 2 * F, H], [E, H, F]]
    call = OpCall("aiter::fmoe_fp8_blockscale_g1u1", shapes, ["bf16"] + ["fp8e4m3"] * 3, [""] * 8 + [str(K)])
    assert (counted(call).flops, counted(call).dtype) == (2 * T * K * 3 * H * F, "fp8e4m3")
    # Tokens and all weights a byte an element, the result two.
    assert bytes_of(counted(call)) == (T * H + E * 3 * H * F, 2 * T * H)


@pytest.mark.parametrize("pairs", ["fp4x2", "u8"])
def test_fused_experts_in_4_bits(pairs: str) -> None:
    """Weights of half as many bytes as elements; the op quantizes the tokens itself."""
    cost = costed("aiter::fused_moe_", "bf16 64 2048", f"{pairs} 64 2816 1024", f"{pairs} 64 2048 704",
                  "fp32 64 6", "i32 64 6")  # fmt: skip
    assert (cost.flops, cost.dtype) == (2 * 64 * K * 3 * H * F, "fp4")
    assert cost.read_bytes == 2 * 64 * H + E * 3 * H * F // 2


def test_expert_gemms_of_ck_tile() -> None:
    """gpt-oss with 16-bit rows and MXFP4 weights: 64 tokens, 4 of 32 experts, 2880 wide, padded to 3072."""
    order = ("i32 1152", "i32 36", "i32 2")
    first = costed(
        "aiter::moe_cktile2stages_gemm1_ck", "bf16 64 3072", "fp4x2 32 6144 1536", "bf16 64 4 3072", *order,
        "4", "192", "128", None, None, "fp8e8m0 32 6144 96", "fp32 32 6144",
    )  # fmt: skip
    assert first.flops == 2 * 64 * 4 * 6144 * 3072
    weights = 32 * 6144 * (1536 + 96 + 4)
    assert bytes_of(first) == (2 * 64 * 3072 + weights, 2 * 64 * 4 * 3072)
    assert (first.dtype, first.engine) == ("bf16", "matrix")
    second = costed(
        "aiter::moe_cktile2stages_gemm2_ck", "bf16 64 4 3072", "fp4x2 32 3072 1536", "bf16 64 3072", *order,
        "4",
    )  # fmt: skip
    assert second.flops == 2 * 64 * 4 * 3072 * 3072
    assert bytes_of(second) == (2 * 64 * 4 * 3072 + 32 * 3072 * 1536, 2 * 64 * 3072)


def test_expert_gemms_of_a_triton_launcher() -> None:
    """Qwen3-30B: 15,360 tokens of 8 experts, as recorded; both GEMMs are calls of one op."""
    name = "sglang_profiler::fused_moe_triton_kernels_invoke_fused_moe_kernel_427"
    routing = ("fp32 15360 8", "i32 15360 8", "i32 131007", "i32 2047", "i32 1")
    first = costed(name, "bf16 15360 2048", "bf16 128 1536 2048", None, "bf16 122880 1536", None, None, None,
                   *routing)  # fmt: skip
    assert first.flops == 2 * 122880 * 1536 * 2048 == 773_094_113_280
    assert bytes_of(first) == (2 * (15360 * 2048 + 128 * 1536 * 2048), 2 * 122880 * 1536)
    second = costed(name, "bf16 122880 768", "bf16 128 2048 768", None, "bf16 15360 8 2048", None, None, None,
                    *routing)  # fmt: skip
    assert second.flops == 2 * 122880 * 2048 * 768
    assert bytes_of(second) == (2 * (122880 * 768 + 128 * 2048 * 768), 2 * 122880 * 2048)
    scaled = costed(name, "fp8e4m3 2 2048", "fp8e4m3 128 1536 2048", None, "bf16 16 1536", "fp32 2 16",
                    "fp32 128 12 16", None, *routing)  # fmt: skip
    # 16 rows use 16 of 128 experts, with their scales; the scales of rows are read whole.
    assert scaled.read_bytes == 2 * 2048 + 16 * (1536 * 2048 + 4 * 12 * 16) + 4 * 2 * 16
    assert scaled.dtype == "fp8e4m3"


OGS = "_matmul_ogs_NNT_bf16xbf16xmxfp4_128x128x128x1_swiglu"
LAYER = recorded("vllm::moe_forward", "bf16 8192 3072", "bf16 8192 32", None, None, kernel=OGS)._replace(
    blocks=13202,
    inner=(
        recorded("TopK", "bf16 8192 32", "4", "True", "1", "True"),
        recorded("SortTokens", "bf16 8192 4", "i16 8192 4", "32"),
    ),
)


@pytest.mark.parametrize("inner", [slice(0, 1), slice(1, 2)])
def test_layer_without_its_weights_as_recorded_on_mi300x(inner: slice) -> None:
    """gpt-oss in vLLM: 8192 tokens of 4 of 32 experts, H 2880 padded to 3072."""
    cost = counted(LAYER._replace(inner=LAYER.inner[inner]))
    # 32,768 rows are 256 full tiles and 31 that are not; 13202 / 287 = 46 tiles of 128 columns.
    width, hidden = 46 * 128, 3072
    assert cost.flops == 2 * 32768 * hidden * (width + width // 2)
    weights = 32 * hidden * (width + width // 2)
    assert cost.read_bytes == 2 * 8192 * (hidden + 32) + weights // 2 + weights // 32
    assert (cost.write_bytes, cost.dtype) == (2 * 8192 * hidden, "bf16")
    assert dict(cost.dims) == {"E": 32, "rows": 32768, "H": hidden, "inner": 2944}


def test_few_rows_have_a_tile_each() -> None:
    call = recorded(
        "vllm::moe_forward", "bf16 4 3072", "bf16 4 32", kernel=OGS.replace("128x128x128", "16x128x256")
    )
    cost = counted(call._replace(blocks=16 * 46, inner=(recorded("TopK", "bf16 4 32", "4"),)))
    # 16 rows use 16 of 32 experts at most.
    elements = 3072 * (46 * 128 + 23 * 128)
    assert cost.flops == 2 * 16 * elements
    assert cost.read_bytes == 2 * 4 * (3072 + 32) + 16 * (elements // 2 + elements // 32)


@pytest.mark.parametrize("last", ["_swiglu", ""])
def test_a_layer_is_counted_by_its_first_gemm_whichever_takes_longest(last: str) -> None:
    """Four rows of one token, the depth in 3 parts: SwiGLU runs where these are added up."""
    first, second = (f"_matmul_NNT_bf16xbf16xmxfp4_16x256x128x{parts}" for parts in (3, 1))
    launches = ((first, 4 * 23 * 3), (f"_reduce{last}", 8), (second, 4 * 12))
    call = recorded("vllm::moe_forward", "bf16 1 3072", "bf16 1 32", kernel=second)
    call = call._replace(blocks=48, inner=(recorded("TopK", "bf16 1 32", "4"),), launches=launches)
    if last:
        assert counted(call).flops == 2 * 4 * 3072 * (23 * 256 + 23 * 128)
    else:
        with pytest.raises(Uncounted, match="weights of the experts"):
            counted(call)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kernel": "_p" + OGS}, "weights of the experts are no arguments"),
        ({"kernel": ""}, "weights of the experts are no arguments"),
        ({"inner": ()}, "number of experts a token"),
        ({"blocks": -1}, "launch grid"),
        ({"blocks": 13203}, "launch grid"),
    ],
)
def test_a_layer_that_cannot_be_counted_says_why(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(Uncounted, match=reason):
        counted(LAYER._replace(**change))


@pytest.mark.parametrize(
    ("name", "shapes", "values", "reason"),
    [
        (
            "vllm::inplace_fused_experts",
            [[T, H], [E, H], [E, H], [T, K], [T, K]],
            [],
            "weights of the experts",
        ),
        ("aiter::fmoe", [[T, H], [T, H], [E, F, H], [E, H, F]], [], "argument 8 has no recorded value"),
        ("aiter::ck_moe_stage1", [[]] * 7, [""] * 7 + ["6"], "tokens without dimensions"),
        ("aiter::moe_cktile2stages_gemm1_ck", [[T, H], [E, F, H], [T, K, F]], [], "argument 6 has no"),
        ("aiter::moe_cktile2stages_gemm2_ck", [[T, K, F], [E, F], [T, H]], [], "weights of the experts"),
    ],
)
def test_what_cannot_be_counted_is_told(name: str, shapes: list[Any], values: list[str], reason: str) -> None:
    with pytest.raises(Uncounted, match=reason):
        counted(OpCall(name, shapes, ["bf16"] * len(shapes), values))

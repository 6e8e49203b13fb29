"""Quantization: elements of 4 bits in pairs, scales as bytes, against hand-worked counts."""

from __future__ import annotations

import pytest

from tests.costs.recorded import costed
from tracelens.costs import Uncounted

_ROWS, _WIDTH = 1000, 7168
_X = _ROWS * _WIDTH
_BF16 = "bf16 1000 7168"
_FP4 = "aiter::dynamic_per_group_scaled_quant_fp4"


@pytest.mark.parametrize(
    ("name", "out", "scales", "written"),
    [
        ("aiter::dynamic_per_tensor_quant", "fp8e4m3 1000 7168", "fp32 1", _X + 4),
        ("aiter::dynamic_per_token_scaled_quant", "fp8e4m3 1000 7168", "fp32 1000 1", _X + 4 * _ROWS),
        ("aiter::dynamic_per_group_scaled_quant", "i8 1000 7168", "fp32 1000 56", _X + 4 * _ROWS * 56),
        # A byte holds two elements; 7168 / 32 scales of a byte a row.
        (_FP4, "fp4x2 1000 3584", "fp8e8m0 1000 224", _X // 2 + _X // 32),
        (_FP4, "u8 1000 3584", "u8 1000 224", _X // 2 + _X // 32),
    ],
)  # fmt: skip
def test_dynamic_scales(name: str, out: str, scales: str, written: int) -> None:
    cost = costed(name, out, _BF16, scales, "32", "True")
    assert (cost.flops, cost.read_bytes, cost.write_bytes) == (2 * _X, 2 * _X, written)
    assert (cost.dtype, cost.engine) == ("bf16", "vector")
    assert cost.dims == (("rows", _ROWS), ("width", _WIDTH))


def test_static_scale() -> None:
    cost = costed("aiter::static_per_tensor_quant", "fp8e4m3 1000 7168", _BF16, "fp32 1")
    assert (cost.flops, cost.read_bytes, cost.write_bytes) == (_X, 2 * _X + 4, _X)


@pytest.mark.parametrize("kind", ["mx", "mxfp4"])
def test_scales_in_the_order_of_the_experts(kind: str) -> None:
    """64 tokens of 8 experts: 512 pairs, padded to 8704 sorted indices."""
    order = ("i32 8704", "i32 2", "64", "32")
    cost = costed(f"aiter::fused_dynamic_{kind}_quant_moe_sort_hip", "fp4x2 64 3584", "fp8e8m0 8704 224",
                  "bf16 64 7168", *order)  # fmt: skip
    assert cost.flops == 2 * 64 * 7168
    assert cost.read_bytes == 64 * 7168 * 2 + 4 * (8704 + 2)
    assert cost.write_bytes == 64 * 3584 + 8704 * 224
    alone = costed(
        "aiter::mxfp4_moe_sort_hip", "fp8e8m0 8704 224", "fp8e8m0 64 224", *order[:2], "64", "7168"
    )
    assert (alone.flops, alone.write_bytes) == (0, 8704 * 224)
    assert alone.read_bytes == 64 * 224 + 4 * (8704 + 2)


def test_groups_of_vllm() -> None:
    cost = costed("vllm::triton_per_token_group_quant_fp8", "bf16 4 1500", "128")
    # 1500 elements are 11 groups of 128 and a shorter one.
    assert (cost.flops, cost.read_bytes, cost.write_bytes) == (2 * 6000, 12000, 6000 + 4 * 4 * 12)


def test_mxfp4_of_launchers() -> None:
    cost = costed("sglang_profiler::quant_dynamic_mxfp4_quant_31", _BF16)
    assert (cost.flops, cost.write_bytes) == (2 * _X, _X // 2 + _X // 32)
    heads = costed("sglang_profiler::fused_mxfp4_quant_fused_flatten_mxfp4_quant_4", "bf16 64 16 40")
    # A row is 16 x 40 elements, which are 20 groups; 16 rows of 40 would have 2 each.
    assert (heads.read_bytes, heads.write_bytes) == (64 * 640 * 2, 64 * 640 // 2 + 64 * 20)


@pytest.mark.parametrize("library", ["primus", "primus_turbo", "primus_turbo_cpp_extension"])
def test_mxfp4_in_both_directions(library: str) -> None:
    cost = costed(f"{library}::quantize_mxfp4_dual", "bf16 1000 7168", "45", "128", *["False"] * 10)
    assert (cost.flops, cost.read_bytes) == (4 * _X, 2 * _X)
    # Of 1000 rows, a column has 31 groups of 32 and a shorter one.
    assert cost.write_bytes == _X + _ROWS * 224 + _WIDTH * 32


@pytest.mark.parametrize("library", ["primus_turbo", "primus_turbo_cpp_extension"])
def test_one_scale_for_a_tensor(library: str) -> None:
    name = f"{library}::quantize_fp8_tensorwise"
    cost = costed(name, _BF16, "24", None)
    assert (cost.flops, cost.read_bytes, cost.write_bytes) == (2 * _X, 2 * _X, _X + 4)
    known = costed(name, _BF16, "24", "fp32 1")
    assert (known.flops, known.read_bytes) == (_X, 2 * _X + 4)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(Uncounted, match="argument 1 has no recorded value"):
        costed("vllm::triton_per_token_group_quant_fp8", _BF16)
    with pytest.raises(Uncounted, match="size of the groups"):
        costed("vllm::triton_per_token_group_quant_fp8", _BF16, "0")
    with pytest.raises(Uncounted, match="argument 2 is not a recorded tensor"):
        costed("aiter::dynamic_per_group_scaled_quant", "fp4x2 1000 3584", _BF16)
    with pytest.raises(Uncounted, match="3 dimensions instead of 2"):
        costed("primus::quantize_mxfp4_dual", "bf16 2 500 7168")

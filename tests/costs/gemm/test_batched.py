"""Batched GEMMs with rows quantized on the way, against hand-worked counts."""

from __future__ import annotations

import pytest

from tests.costs.recorded import costed
from tracelens.costs import Uncounted

_FP8 = "sglang_profiler::batched_gemm_a8w8_a_per_token_group_prequant_w_per_batched_tensor_quant_12"


def test_absorbed_projection_in_mxfp4() -> None:
    """DeepSeek-R1 decoding 64 tokens with 16 heads: 64 x 128 by 512 x 128, two weights a byte."""
    cost = costed("aiter::batched_gemm_a16wfp4_", "bf16 16 64 128", "u8 16 512 64", "u8 16 512 4", "15")
    assert cost.flops == 2 * 16 * 64 * 512 * 128
    assert cost.read_bytes == 16 * 64 * 128 * 2 + 16 * 512 * 64 + 16 * 512 * 4
    assert cost.write_bytes == 16 * 64 * 512 * 2
    assert (cost.dtype, cost.engine) == ("fp4", "matrix")
    assert cost.dims == (("B", 16), ("M", 64), ("N", 512), ("K", 128))


def test_result_with_its_scale_and_rows_left_in_16_bits() -> None:
    arguments = ("bf16 16 64 128", "u8 16 512 64", "u8 16 512 4", "15", "fp8e4m3 64 16 512", "", "True")
    cost = costed("aiter::batched_gemm_a16wfp4_", *arguments, "False", "fp32 1")
    assert cost.read_bytes == 16 * 64 * 128 * 2 + 16 * 512 * (64 + 4) + 4
    assert (cost.write_bytes, cost.dtype) == (16 * 64 * 512, "bf16")


@pytest.mark.parametrize("rows", ["bf16 16 64 128", "bf16 64 16 128"])
@pytest.mark.parametrize("result", [(), (None, "bf16 64 16 512")])
def test_absorbed_projection_in_fp8(rows: str, result: tuple[str | None, ...]) -> None:
    cost = costed(_FP8, rows, "fp8e4m3 16 512 128", "fp32 1", *result)
    assert cost.flops == 2 * 16 * 64 * 512 * 128
    assert (cost.read_bytes, cost.write_bytes) == (16 * 64 * 128 * 2 + 16 * 512 * 128 + 4, 16 * 64 * 512 * 2)
    assert cost.dtype == "fp8e4m3"


def test_a_bias_is_read() -> None:
    cost = costed(_FP8, "bf16 16 64 128", "fp8e4m3 16 512 128", "fp32 1", "bf16 16 1 512", "fp16 16 64 512")
    assert cost.read_bytes == 16 * 64 * 128 * 2 + 16 * 512 * 128 + 4 + 16 * 512 * 2
    assert cost.write_bytes == 16 * 64 * 512 * 2


def test_shapes_that_do_not_fit_are_named() -> None:
    with pytest.raises(Uncounted, match="inner dimension"):
        costed("aiter::batched_gemm_a16wfp4_", "bf16 16 64 64", "u8 16 512 64", "u8 16 512 4")
    with pytest.raises(Uncounted, match="number of GEMMs"):
        costed(_FP8, "bf16 5 3 128", "fp8e4m3 16 512 128", "fp32 1")
    with pytest.raises(Uncounted, match="3 dimensions"):
        costed(_FP8, "bf16 64 128", "fp8e4m3 16 512 128", "fp32 1")

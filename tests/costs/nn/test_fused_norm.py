"""Norms fused with quantization, padding or modulation, against hand-worked counts."""

from __future__ import annotations

import pytest

from tests.costs.recorded import costed
from tracelens.costs import Uncounted

M, N = 64, 7168
X = M * N
ROWS, WEIGHT = "bf16 64 7168", "bf16 7168"
FP4 = X // 2 + X // 32  # two elements a byte, a scale of a byte for 32


def test_to_fp8_by_groups() -> None:
    plain = costed("vllm::rocm_aiter_rmsnorm_fp8_group_quant", ROWS, WEIGHT, "1e-06", "128")
    assert plain.flops == (4 + 2) * X
    assert (plain.read_bytes, plain.write_bytes) == (2 * X + 2 * N, X + 4 * M * 56)
    added = costed("vllm::rocm_aiter_rmsnorm_with_add_fp8_group_quant", ROWS, ROWS, WEIGHT, "1e-06", "128")
    assert added.flops == (4 + 2 + 1) * X
    assert (added.read_bytes, added.write_bytes) == (4 * X + 2 * N, X + 4 * M * 56 + 2 * X)
    assert added.dims == (("rows", M), ("width", N))


def test_to_mxfp4() -> None:
    name = "aiter::_fuse_rmsnorm_fp4_quant"
    plain = costed(name, ROWS, WEIGHT, "1e-06", None, None, None, None, "True", "True", "False")
    assert (plain.flops, plain.read_bytes, plain.write_bytes) == (6 * X, 2 * X + 2 * N, FP4)
    full = costed(
        name, ROWS, WEIGHT, "1e-06", "bf16 64 512", "bf16 512", "1e-06", ROWS, "True", "True", "True"
    )
    assert full.flops == 7 * X + 4 * M * 512
    assert full.read_bytes == 4 * X + 2 * N + 2 * M * 512 + 2 * 512
    # Pairs and scales, rows before quantization, the sum with the residual, the second result.
    assert full.write_bytes == FP4 + 2 * X + 2 * X + 2 * M * 512


def test_to_mxfp4_by_a_launcher_without_its_numbers() -> None:
    name, other = "sglang_profiler::fused_mxfp4_quant_fused_rms_mxfp4_quant_8", ("bf16 64 512", "bf16 512")
    assert costed(name, ROWS, WEIGHT).write_bytes == FP4
    residual = costed(name, ROWS, WEIGHT, None, None, ROWS)
    assert (residual.flops, residual.write_bytes) == (7 * X, FP4 + 2 * X)
    both = costed(name, ROWS, WEIGHT, *other, ROWS)
    assert (both.flops, both.write_bytes) == (7 * X + 4 * M * 512, FP4 + 2 * X + 2 * M * 512)
    second = costed(name, ROWS, WEIGHT, *other)
    assert (second.flops, second.write_bytes) == (6 * X + 4 * M * 512, FP4 + 2 * M * 512)


@pytest.mark.parametrize("name", ["aiter::fused_add_rmsnorm_pad_", "vllm::rocm_aiter_triton_add_rmsnorm_pad"])
def test_rows_padded_to_a_multiple(name: str) -> None:
    """gpt-oss: 2880 elements in rows of 3072."""
    cost = costed(name, "bf16 64 2880", "bf16 2880", "1e-05", "bf16 64 2880", "256")
    assert cost.flops == 5 * M * 2880
    assert cost.read_bytes == 2 * (2 * M * 2880 + 2880)
    assert cost.write_bytes == 2 * M * (3072 + 2880)
    plain = costed(name, "bf16 64 2880", "bf16 2880", "1e-05", "bf16 64 2880", "0")
    assert plain.write_bytes == 2 * M * 2 * 2880


def test_quantized_into_an_argument() -> None:
    results = ("i8 64 7168", ROWS)
    cost = costed("aiter::rmsnorm2d_fwd_with_dynamicquant_ck", *results, "fp32 64 1", WEIGHT, "1e-06", "0")
    assert (cost.flops, cost.read_bytes, cost.write_bytes) == (6 * X, 2 * X + 2 * N, X + 4 * M)


def test_group_norm_of_images() -> None:
    image, channels = "fp16 2 320 64 64", "fp16 320"
    elements = 2 * 320 * 64 * 64
    cost = costed("aiter::_groupnorm_run", image, "32", channels, channels, "1e-05")
    assert (cost.flops, cost.write_bytes) == (7 * elements, 2 * elements)
    assert cost.read_bytes == 2 * elements + 2 * 2 * 320
    assert (
        costed("aiter::_groupnorm_run", image, "fp32 8192", image, "32", channels, channels, "1e-05") == cost
    )


def test_layer_norm_with_modulation() -> None:
    """Flux in Primus: 256 positions of 40 samples."""
    x, mix, rows = "bf16 256 40 3072", "bf16 40 3072", "fp32 10240"
    elements = 256 * 40 * 3072
    forward = costed("primus::fused_ln_modulate", x, mix, mix, "1e-06")
    assert forward.flops == 7 * elements
    assert forward.read_bytes == 2 * elements + 2 * 2 * 40 * 3072
    assert forward.write_bytes == 2 * elements + 2 * 4 * 10240
    backward = costed("primus::fused_ln_modulate_backward", x, x, rows, rows, mix)
    assert backward.flops == 12 * elements
    assert backward.read_bytes == 4 * elements + 2 * 40 * 3072 + 2 * 4 * 10240
    assert backward.write_bytes == 2 * elements + 2 * 2 * 40 * 3072


def test_what_is_missing_is_named() -> None:
    with pytest.raises(Uncounted, match="argument 3 has no recorded value"):
        costed("vllm::rocm_aiter_rmsnorm_fp8_group_quant", ROWS, WEIGHT)
    with pytest.raises(Uncounted, match="1 recorded tensors instead of 2"):
        costed("sglang_profiler::fused_mxfp4_quant_fused_rms_mxfp4_quant_8", ROWS)

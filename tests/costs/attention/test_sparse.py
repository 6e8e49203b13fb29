"""Sparse attention by lists of keys, against hand-worked counts."""

from __future__ import annotations

import pytest

from tests.costs.recorded import costed
from tracelens.costs import Uncounted


def test_lists_into_a_cache_and_into_new_tokens() -> None:
    """1024 tokens of 64 heads, 128 cached rows and 512 new ones each."""
    cost = costed(
        "aiter::pa_sparse_prefill_opus_fwd", "bf16 1024 64 512", "bf16 100000 512", "i32 131072", "i32 1025",
        "bf16 1024 512", "i32 524288", "i32 1025", "fp32 64", "bf16 1024 64 512", "0.04",
    )  # fmt: skip
    pairs = 131072 + 524288
    assert cost.flops == 2 * pairs * 64 * (512 + 512)
    # Of the cache at most all its rows, of the new tokens their 1024.
    rows = 100000 + 1024
    lists = 4 * (pairs + 2 * 1025 + 64)
    assert cost.read_bytes == 2 * 1024 * 64 * 512 + 2 * rows * 512 + lists
    assert cost.write_bytes == 2 * 1024 * 64 * 512
    assert (cost.dtype, cost.engine) == ("bf16", "matrix")
    assert "upper bound" in cost.note


@pytest.mark.parametrize("values", [[], ["0.04", "512"]])
def test_latents_of_deepseek(values: list[str]) -> None:
    """32 tokens decode, each with 2048 of 100,000 latents of 512 + 64 elements."""
    name = "sglang_profiler::tilelang_kernel_tilelang_sparse_fwd_5"
    cost = costed(name, "bf16 32 128 576", "bf16 100000 1 576", "i32 32 1 2048", *values)
    pairs = 32 * 2048
    assert cost.flops == 2 * pairs * 128 * (576 + 512)
    assert cost.read_bytes == 2 * 32 * 128 * 576 + 2 * pairs * 576 + 4 * pairs
    assert cost.write_bytes == 2 * 32 * 128 * 512


def test_a_cache_of_8_bits_has_a_result_of_16() -> None:
    name = "sglang_profiler::tilelang_kernel_tilelang_sparse_fwd_5"
    cost = costed(name, "fp8e4m3 32 128 576", "fp8e4m3 100000 1 576", "i32 32 1 2048")
    assert (cost.write_bytes, cost.dtype) == (2 * 32 * 128 * 512, "fp8e4m3")


def test_unknown_layouts_are_named() -> None:
    with pytest.raises(Uncounted, match="unknown layout"):
        costed(
            "sglang_profiler::tilelang_kernel_tilelang_sparse_fwd_5",
            "bf16 32 576",
            "bf16 9 1 576",
            "i32 32 9",
        )

"""Writing into caches of keys and values, against hand-worked counts."""

from __future__ import annotations

import pytest

from tests.costs.recorded import costed

NOPE, ROPE = "bf16 64 16 512", "bf16 64 16 64"
Q, K = 64 * 16 * (512 + 64), 64 * (512 + 64)
TABLES = ("i64 64", "bf16 163840 32", "bf16 163840 32")


@pytest.mark.parametrize(
    "name",
    [
        "sglang::store_cache",
        "sglang_profiler::memory_pool__set_kv_buffer_impl_353",
        "aiter::reshape_and_cache",
    ],
)
def test_rows_of_new_tokens_and_not_the_cache(name: str) -> None:
    """Qwen3-8B on MI300X as recorded: 32 tokens, 131 kB into two caches of 1.7 GB."""
    cost = costed(name, "bf16 32 1024", "bf16 32 1024", "bf16 835874 1024", "bf16 835874 1024", "i64 32")
    assert (cost.flops, cost.engine) == (0, "vector")
    assert (cost.read_bytes, cost.write_bytes) == (2 * 2 * 32 * 1024 + 8 * 32, 2 * 2 * 32 * 1024)


def test_a_cache_of_8_bits() -> None:
    cache = "u8 5000 16 8 128"
    cost = costed(
        "_C_cache_ops::reshape_and_cache_flash", "bf16 32 8 128", "bf16 32 8 128", cache, cache, "i64 32"
    )
    assert cost.write_bytes == 2 * 32 * 8 * 128
    latents = costed(
        "_C_cache_ops::concat_and_cache_mla", "bf16 64 512", "bf16 64 64", "u8 9000 16 576", "i64 64"
    )
    assert (latents.read_bytes, latents.write_bytes) == (2 * K + 8 * 64, K)


def test_rotary_embedding_in_front_of_the_cache() -> None:
    """DeepSeek-V3 with 16 heads a rank; queries and cache of 8 bits."""
    cost = costed(
        "aiter::fused_qk_rope_concat_and_cache_mla", NOPE, ROPE, "bf16 64 512", "bf16 64 64",
        "fp8e4m3 9000 16 576", "fp8e4m3 64 16 576", "i64 64", "fp32 1", "fp32 1", *TABLES, "False", "True",
    )  # fmt: skip
    # Only the 64 rotary elements of queries and keys are turned.
    assert cost.flops == 3 * (64 * 16 * 64 + 64 * 64)
    tables = 8 * 64 + 2 * 2 * 64 * 32
    assert cost.read_bytes == 2 * (Q + K) + 8 * 64 + 4 + 4 + tables
    assert cost.write_bytes == Q + K
    assert dict(cost.dims) == {"tokens": 64, "H": 16}


def test_the_same_by_triton_with_more_results() -> None:
    name = "aiter::fused_qk_rope_cat_and_cache_mla"
    front = (NOPE, ROPE, "bf16 64 1 512", "bf16 64 1 64", "fp8e4m3 144000 1 576", "i64 64", *TABLES, "fp32 1")
    cost = costed(name, *front, "False", "0", "True", None, None, None, "24")
    assert cost.flops == 3 * (64 * 16 * 64 + 64 * 64)
    assert cost.read_bytes == 2 * (Q + K) + 8 * 64 + 4 + 8 * 64 + 2 * 2 * 64 * 32
    # Joined queries of 8 bits, turned keys of 16, rows of the cache.
    assert cost.write_bytes == Q + 2 * 64 * 64 + K
    decoding = costed(name, *front, "False", "16", "True", "bf16 64 16 576")
    assert decoding.write_bytes == 2 * Q + 2 * 64 * 64 + K + 2 * 16 * 16 * (512 + 64)

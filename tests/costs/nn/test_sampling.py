"""Sampling of tokens."""

from __future__ import annotations

from tests.costs.recorded import costed, recorded
from tracelens.costs import find


def test_a_draw_by_temperature() -> None:
    cost = costed(
        "aiter::mixed_sample_outer_exponential", "i32 64", "bf16 64 151936", "fp32 64 151936", "fp32 64"
    )
    logits = 64 * 151936
    assert (cost.flops, cost.dtype, cost.engine) == (4 * logits, "bf16", "vector")
    assert (cost.read_bytes, cost.write_bytes) == (6 * logits + 4 * 64, 4 * 64)


def test_one_row_of_noise_for_all() -> None:
    name = "aiter::mixed_sample_outer_exponential"
    call = recorded(name, "i32 64", "bf16 64 151936", "fp32 64 151936", "fp32 64")
    call = call._replace(strides=[[1], [151936, 1], [0, 1], [1]])
    model = find(name)
    assert model is not None
    assert model.function(call).read_bytes == 2 * 64 * 151936 + 4 * 151936 + 4 * 64


def test_greedy() -> None:
    cost = costed("aiter::greedy_sample", "i32 64", "bf16 64 151936")
    assert (cost.flops, cost.read_bytes, cost.write_bytes) == (64 * 151936, 2 * 64 * 151936, 256)

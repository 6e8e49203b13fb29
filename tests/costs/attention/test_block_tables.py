"""Attention over a cache of blocks that a table lists, its lengths from the step label."""

from __future__ import annotations

import pytest

from tests.costs.recorded import at_step, recorded
from tracelens.costs import Lengths, OpCall, ServingBatch, Uncounted

NONE = Lengths(0, 0, 0, 0)
DECODING = ServingBatch(NONE, Lengths(32, 32_785, 32, 32_785))
"""A step of 32 requests with 32 785 tokens in the cache together."""


Q, K, V = "bf16 32 32 128", "bf16 9000 8 16 16 8", "bf16 9000 8 128 16"
SCRATCH = ("fp32 32 32 4", "fp32 32 32 4", "bf16 32 32 4 128")
TABLES = ("int32 32 64", "int32 32")


@pytest.mark.parametrize(
    "call",
    [
        recorded("_C::paged_attention_v1", Q, Q, K, V, 8, 0.088, *TABLES, 16, 1100),
        recorded("_C::paged_attention_v2", Q, *SCRATCH, Q, K, V, 8, 0.088, *TABLES, 16, 1100),
        recorded("_rocm_C::paged_attention", Q, *SCRATCH, Q, K, V, 8, 0.088, *TABLES, None, 16, 1100),
        recorded("aiter::paged_attention_rocm", Q, *SCRATCH, Q, K, V, 8, 0.088, *TABLES, 16, 1100),
        recorded("aiter::pa_fwd_asm", Q, K, "bf16 9000 8 2 128 8", *TABLES, 64),
        recorded("aiter::pa_fwd_naive", Q, K, V, *TABLES, "fp32 1", "fp32 1", 1100, 8),
    ],
    ids=lambda call: call.name,
)
def test_blocks_of_a_cache_by_the_label(call: OpCall) -> None:
    """4 x heads x D FLOPs for each of 32 785 keys; keys and values of 8 heads once, queries and output.

    Another tool counts this step alike: 0.53714944 GFLOPs and 128.56640625 MiB.
    """
    cost = at_step(call, DECODING)
    assert cost.flops == 4 * 32 * 128 * 32_785 == 537_149_440
    assert cost.read_bytes == (2 * 32_785 * 8 + 32 * 32) * 128 * 2
    assert cost.read_bytes + cost.write_bytes == 128.56640625 * 2**20
    assert cost.note == "lengths from the step label"
    with pytest.raises(Uncounted, match="lengths"):
        at_step(call)
    # More keys than the cache has room for are those of another call.
    with pytest.raises(Uncounted, match="lengths"):
        at_step(call, ServingBatch(NONE, Lengths(32, 144_001, 32, 144_001)))


def test_eight_bit_caches_are_read_as_bytes() -> None:
    call = recorded("aiter::pa_fwd_asm", Q, "fp8e4m3 9000 8 8 16 16", "fp8e4m3 9000 8 1 128 16", *TABLES, 64)
    cost = at_step(call, DECODING)
    assert cost.flops == 537_149_440
    assert cost.read_bytes == 2 * 32_785 * 8 * 128 + 32 * 32 * 128 * 2


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["bf16 8 4096"] * 4, "layout"),
        ([Q, Q, "bf16 9000 8 3 16 7", V], "disagree"),
        ([Q, Q, "bf16 9000 7 16 16 8", "bf16 9000 7 128 16"], "disagree"),
        ([Q, Q, K, "bf16 9000 4 128 16"], "layout"),
        # Pages of tokens, as FlashAttention keeps them: its second dimension is no number of heads.
        ([Q, Q, "bf16 9000 16 8 128", "bf16 9000 16 8 128"], "layout"),
        ([8, 0.088], "layout"),
    ],
)
def test_other_caches_are_not_guessed(arguments: list[object], reason: str) -> None:
    with pytest.raises(Uncounted, match=reason):
        at_step(recorded("_C::paged_attention_v1", *arguments), DECODING)

"""Attention over a paged cache: what its sequences have in it is read, by the step label or the arguments."""

from __future__ import annotations

from typing import Any

import pytest

from tests.costs.recorded import at_step, recorded
from tracelens.costs import Lengths, OpCall, ServingBatch, Uncounted

NONE = Lengths(0, 0, 0, 0)
POOL = "bf16 835874 8 128"
# A recorded step of vLLM: execute_8192_context_9(sq8155...)_generation_37(sq37...).
MIXED = ServingBatch(Lengths(8155, 8430, 7475785, 7671310), Lengths(37, 34489, 37, 34489))


def prefill(
    queries: int = 15360, sequences: int = 15, pages: int = 15616, longest: tuple[int, int] = (1024, 1024),
    cache: tuple[str, str] = (POOL, POOL), window: str = "-1", causal: str = "True",
) -> OpCall:  # fmt: skip
    bounds = f"i32 {sequences + 1}"
    return recorded(
        "aiter::mha_batch_prefill", f"bf16 {queries} 32 128", *cache, bounds, bounds, f"i32 {pages}",
        str(longest[0]), str(longest[1]), "0.", "0.088", "0.", "False", causal, window, "0", "False", "False",
    )  # fmt: skip


@pytest.mark.parametrize(
    "batch", [None, ServingBatch(Lengths(15360, 15360, 15 * 1024**2, 15 * 1024**2), NONE)]
)
def test_equal_sequences_without_a_prefix(batch: ServingBatch | None) -> None:
    """129 GFLOP and 0.31 GB, not the 3.4 GB of the cache."""
    cost = at_step(prefill(), batch)
    assert cost.flops == 4 * 32 * 128 * 15 * 1024**2 // 2 == 128_849_018_880
    assert cost.read_bytes == (15360 * 32 + 2 * 15360 * 8) * 128 * 2
    assert cost.write_bytes == 15360 * 32 * 128 * 2
    assert dict(cost.dims)["Nk"] == 15360


def test_one_sequence_with_a_prefix() -> None:
    cost = at_step(prefill(1000, 1, 3256, (1000, 3000)))
    assert cost.flops == 2 * 32 * (128 + 128) * (1000 * 3000 - 1000 * 1000 // 2)
    assert cost.read_bytes == (1000 * 32 + 2 * 3000 * 8) * 128 * 2


def test_one_query_a_sequence_sees_all_keys_in_use() -> None:
    cost = at_step(prefill(32, 32, 32785, (1, 4000)))
    assert cost.flops == 4 * 32 * 128 * 32785
    assert cost.read_bytes == (32 * 32 + 2 * 32785 * 8) * 128 * 2


@pytest.mark.parametrize(
    ("k", "v"),
    [
        ("bf16 5000 16 8 128", "bf16 5000 16 8 128"),
        ("bf16 5000 8 16 16 8", "bf16 5000 8 2 128 8"),
    ],
    ids=["linear", "for vector loads"],
)
def test_pages_of_several_tokens(k: str, v: str) -> None:
    cost = at_step(prefill(pages=960, cache=(k, v)))
    assert cost == at_step(prefill())


def test_a_window_reads_only_what_it_sees() -> None:
    cost = at_step(prefill(100, 1, 5000, (100, 5000), window="127"))
    assert cost.flops == 4 * 32 * 128 * 100 * 128
    assert cost.read_bytes == (100 * 32 + 2 * 227 * 8) * 128 * 2
    assert "window is not counted" in at_step(prefill(window="127")).note


def test_without_a_mask_every_query_sees_every_key() -> None:
    assert at_step(prefill(causal="False")).flops == 4 * 32 * 128 * 15 * 1024**2


@pytest.mark.parametrize(
    "call",
    [
        prefill(12000),
        prefill(longest=(0, 0)),
        prefill(0, 1, 0, (1, 1)),
        recorded(
            "flash_attn::_flash_attn_varlen_forward", "bf16 64 32 128", *["bf16 9000 16 8 128"] * 2,
            "i32 65", "i32 65", "1", "512", "0.", "0.088", "False", "-1", "-1", "0.", None, "False",
            "i32 64 32",
        ),
        recorded("vllm::unified_attention_with_output", "bf16 8 64 64", *["bf16 8 8 64"] * 2),
    ],
    ids=["ragged", "no lengths", "nothing", "block table", "vLLM"],
)  # fmt: skip
def test_unknown_lengths_are_not_counted(call: OpCall) -> None:
    with pytest.raises(Uncounted, match="sequence lengths"):
        at_step(call)
    # Neither does the label of a step with other queries tell them.
    with pytest.raises(Uncounted, match="sequence lengths"):
        at_step(call, ServingBatch(Lengths(9_000_000, 9_000_000, 10**13, 10**13), NONE))


def test_ragged_sequences_by_the_label() -> None:
    """Sums of 2 sequences: 100 new of 300 keys, 12 of 12."""
    lengths = Lengths(112, 312, 100**2 + 12**2, 100 * 300 + 12 * 12)
    cost = at_step(prefill(112, 2, 568, (100, 300)), ServingBatch(lengths, NONE))
    assert cost.flops == 4 * 32 * 128 * (100 * 300 - 100 * 50 + 12 * 6)
    assert cost.read_bytes == (112 * 32 + 2 * 312 * 8) * 128 * 2
    assert cost.note == "lengths from the step label"
    # Of a step with decoding beside it, the call has the prefill; other sums than its pages hold are not its.
    assert at_step(prefill(112, 2, 568, (100, 300)), ServingBatch(lengths, Lengths(7, 900, 7, 900))) == cost
    with pytest.raises(Uncounted):
        at_step(prefill(112, 2, 300, (100, 300)), ServingBatch(lengths, NONE))


@pytest.mark.parametrize("queries", [8192, 8448])
def test_unified_attention_of_a_mixed_step(queries: int) -> None:
    """As another tool counts this step; padding is no query."""
    q, kv = f"bf16 {queries} 64 64", f"bf16 {queries} 8 64"
    cost = at_step(recorded("vllm::unified_attention_with_output", q, kv, kv, q), MIXED)
    assert cost.flops == 65_010_180_096
    assert cost.read_bytes + cost.write_bytes == 211.826171875 * 2**20
    assert cost.note.startswith("lengths from the step label")


@pytest.mark.parametrize(
    ("shapes", "reason"),
    [
        (["bf16 8192 4096", *["bf16 8192 512"] * 2], "lengths"),
        (["bf16 8192 64 64", *["bf16 8192 8 128"] * 2], "disagree"),
        (["bf16 8192 64 64", *["bf16 8192 7 64"] * 2], "disagree"),
    ],
)
def test_other_layouts_are_not_guessed(shapes: list[str], reason: str) -> None:
    with pytest.raises(Uncounted, match=reason):
        at_step(recorded("vllm::unified_attention", *shapes), MIXED)


DECODE = ServingBatch(NONE, Lengths(37, 34489, 37, 34489))
LATENT = recorded(
    "vllm::unified_mla_attention_with_output",
    "bf16 40 128 192",
    "bf16 40 512",
    "bf16 40 1 64",
    "bf16 40 16384",
)._replace(launches=(("_fwd_grouped_kernel_stage1", 8), ("_fwd_kernel_stage2", 4)))


def test_decoding_over_latents_by_the_label() -> None:
    """37 requests in a graph of 40: 128 heads meet latents of 512 + 64, the values are in them."""
    cost = at_step(LATENT, DECODE)
    assert cost.flops == 2 * 128 * 34489 * (576 + 512)
    assert cost.read_bytes == 2 * (37 * 128 * 576 + 34489 * 576)
    assert cost.write_bytes == 2 * 37 * 128 * 512


@pytest.mark.parametrize(
    ("change", "batch", "reason"),
    [
        ({}, None, "lengths"),
        ({}, MIXED, "lengths"),
        ({"launches": ()}, DECODE, "no attention kernel"),
        ({"inner": (recorded("aiter::mla_decode_stage1_asm_fwd"),)}, DECODE, "op inside"),
        ({"shapes": [[40, 4096]] * 4}, DECODE, "unknown layout"),
    ],
)
def test_other_latent_attention_is_not_counted(
    change: dict[str, Any], batch: ServingBatch | None, reason: str
) -> None:
    with pytest.raises(Uncounted, match=reason):
        at_step(LATENT._replace(**change), batch)


def test_arguments_of_a_capture_are_not_those_of_its_replay() -> None:
    counted = prefill(64, 64, 64000, (1, 1000))
    assert at_step(counted).flops
    with pytest.raises(Uncounted, match="those of the capture"):
        at_step(counted._replace(is_replayed=True))
    labelled = at_step(counted._replace(is_replayed=True), ServingBatch(NONE, Lengths(60, 30000, 60, 30000)))
    assert labelled.flops == 4 * 32 * 128 * 30000


PAGES = "i32 64 4096"
LONG = ServingBatch(NONE, Lengths(64, 100_000, 64, 100_000))


@pytest.mark.parametrize("values", ["fp8e4m3 9000 8 128 16", "fp8e4m3 9000 8 1 128 16"])
def test_decoding_by_gluon(values: str) -> None:
    """64 requests with 100,000 tokens in a cache of 8 bits."""
    call = recorded(
        "aiter::pa_decode_gluon", "bf16 64 64 128", "bf16 64 64 128", "fp8e4m3 9000 8 8 16 16", values,
        "i32 64", PAGES, "0.088", "1", "16", "256", "24", *[None] * 8, "0", "True",
    )  # fmt: skip
    cost = at_step(call, LONG)
    assert cost.flops == 4 * 64 * 128 * 100_000
    assert cost.read_bytes == 2 * 64 * 64 * 128 + 2 * 100_000 * 8 * 128
    assert cost.write_bytes == 2 * 64 * 64 * 128
    assert cost.note == "lengths from the step label"
    windowed = call._replace(values=[*call.values[:19], "128", "True"])
    assert at_step(windowed, LONG) == cost._replace(
        note="lengths from the step label; upper bound: a sliding window is not counted"
    )
    with pytest.raises(Uncounted, match="sequence lengths in the KV cache"):
        at_step(call)


def test_decoding_over_lists_of_pages_as_recorded_on_mi300x() -> None:
    """Qwen3-8B in SGLang, 32 requests; the buffer of the lists is larger than the cache."""
    call = recorded(
        "sglang_profiler::attention_paged_attention_ragged_100", "bf16 32 32 128", "u8 10905190400",
        "bf16 32 32 128", "bf16 835874 1 8 128", "bf16 835874 1 8 128", "i32 33", "i32 20971520", "i32 4096",
        None, "fp32 1", "fp32 1", None,
    )  # fmt: skip
    cost = at_step(call, ServingBatch(NONE, Lengths(32, 32785, 32, 32785)))
    assert cost.flops == 4 * 32 * 128 * 32785
    assert cost.read_bytes == 2 * (32 * 32 * 128 + 2 * 32785 * 8 * 128)
    with pytest.raises(Uncounted, match="sequence lengths in the KV cache"):
        at_step(call)

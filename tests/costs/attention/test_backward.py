"""Attention, backward: five GEMMs to the forward's two."""

from __future__ import annotations

import pytest

from tests.costs.recorded import costed
from tracelens.costs import Uncounted


def test_latent_attention_as_recorded_on_h100() -> None:
    cost = costed(
        "aten::_cudnn_attention_backward", "bf16 2 16 2048 128", "bf16 2 16 2048 192", "bf16 2 16 2048 192",
        "bf16 2 16 2048 128", "bf16 2 16 2048 128", "fp32 2 16 2048 1", "i64", "i64", None, None, None,
        "2048", "2048", "0.", "True", "0.07216",
    )  # fmt: skip
    # S, dQ and dK are 192 wide, dV and dP 128; half, as it is causal.
    assert cost.flops == 2 * 2 * 16 * 2048 * 2048 * (3 * 192 + 2 * 128) // 2
    tokens = 2 * 16 * 2048
    assert cost.read_bytes == tokens * (192 + 192 + 128 + 128 + 128) * 2 + tokens * 4
    assert cost.write_bytes == tokens * (192 + 192 + 128) * 2


def test_two_and_a_half_times_the_forward() -> None:
    """With keys and values of one width; every op of PyTorch's, in its own layout."""
    first, last = "bf16 2 8 64 32", "bf16 2 64 8 32"
    forward = costed("aten::_scaled_dot_product_flash_attention", *[first] * 3, "0.", "False", "False").flops
    seeds = ("i64", "i64")
    calls = {
        "aten::_scaled_dot_product_flash_attention_backward":
            (*[first] * 5, "fp32 2 8 64", None, None, "64", "64", "0.", "False", *seeds),
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward":
            (*[first] * 5, "fp32 2 8 64", "0.", "False"),
        "aten::_scaled_dot_product_efficient_attention_backward":
            (*[first] * 4, None, first, "fp32 2 8 64", *seeds, "0.", "[True, True, True, False]", "False"),
        "aten::_scaled_dot_product_cudnn_attention_backward":
            (*[first] * 5, "fp32 2 8 64", *seeds, None, None, None, "64", "64", "0.", "False"),
        "aten::_scaled_dot_product_fused_attention_overrideable_backward":
            (*[first] * 4, None, "[True, True, True, False]", first, "fp32 2 8 64", None, None, "64", "64",
             "0.", "False", *seeds),
        "aten::_flash_attention_backward":
            (*[last] * 5, "fp32 2 8 64", None, None, "64", "64", "0.", "False", *seeds),
        "aten::_efficient_attention_backward":
            (*[last] * 4, None, last, None, None, "64", "64", "fp32 2 8 64", "0.", *seeds, "0", "False"),
    }  # fmt: skip
    tensor = 2 * 8 * 64 * 32 * 2
    for name, arguments in calls.items():
        cost = costed(name, *arguments)
        assert cost.flops * 2 == forward * 5, name
        assert (cost.read_bytes, cost.write_bytes) == (5 * tensor + 2 * 8 * 64 * 4, 3 * tensor), name


def test_shared_keys_have_gradients_of_their_own_size() -> None:
    cost = costed(
        "aten::_flash_attention_backward", "bf16 1 64 8 32", "bf16 1 64 8 32", *["bf16 1 64 2 32"] * 2,
        "bf16 1 64 8 32", "fp32 1 8 64", None, None, "64", "64", "0.", "True",
    )  # fmt: skip
    assert cost.write_bytes == (64 * 8 * 32 + 2 * 64 * 2 * 32) * 2


def test_packed_sequences() -> None:
    cost = costed(
        "aten::_flash_attention_backward", *["bf16 200 8 64"] * 5, "fp32 8 200", "i32 3", "i32 3", "100",
        "100", "0.", "True",
    )  # fmt: skip
    assert cost.flops == 2 * (10 * 8 * 100 * 100 * 64) // 2
    assert cost.note == "causal: half of the scores"


def test_a_bias_is_read() -> None:
    bare = ("bf16 1 4 8 16",) * 4
    rest = ("bf16 1 4 8 16", "fp32 1 4 8", "i64", "i64", "0.", "[True, True, True, True]", "False")
    name = "aten::_scaled_dot_product_efficient_attention_backward"
    assert costed(name, *bare, "bf16 4 8 8", *rest).read_bytes - costed(
        name, *bare, None, *rest
    ).read_bytes == (4 * 8 * 8 * 2)


def test_an_unrecorded_mask_is_not_guessed() -> None:
    with pytest.raises(Uncounted, match="causal"):
        costed("aten::_flash_attention_backward", *["bf16 1 8 2 16"] * 5, "fp32 1 2 8")

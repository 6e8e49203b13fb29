"""Attention of libraries, in the orders of arguments of their published sources."""

from __future__ import annotations

import pytest

from tests.costs.recorded import at_step, costed, recorded
from tracelens.costs import Lengths, ServingBatch, Uncounted

_Q, _KV = "bf16 2 1024 32 128", "bf16 2 1024 8 128"
_FULL = 4 * 2 * 32 * 1024 * 1024 * 128
_PACKED = ("bf16 2048 32 128", "bf16 2048 8 128", "bf16 2048 8 128")


@pytest.mark.parametrize(
    ("name", "rest"),
    [
        ("flash_attn::_flash_attn_forward", ("0.", "0.088", "True", "-1", "-1", "0.", None, "False")),
        ("aiter::mha_fwd", ("0.", "0.088", "True", "-1", "-1", "True", "False")),
        ("aiter::fmha_v3_fwd", ("0.", "0.088", "True", "-1", "0", "True", "False", "1")),
        ("aiter::wrapper_fmha_v3_fwd", ("0.", "0.088", "True", "-1", "-1", "True", "False")),
        ("aiter::_flash_attn_forward", ("0.", "0.088", "True", "-1", "-1", None, "True", "False")),
        ("flash_attn_3::fwd", (*[None] * 18, "0.088", "True", "-1", "-1", "0", "0.", "False")),
        ("FlashAttnFunc", ("0.", None, "True", "0.", None, "False", "False")),
    ],
)
def test_dense_forward(name: str, rest: tuple[str | None, ...]) -> None:
    cost = costed(name, _Q, _KV, _KV, *rest)
    assert cost.flops == _FULL // 2
    assert cost.read_bytes == 2 * 1024 * (32 + 8 + 8) * 128 * 2
    assert dict(cost.dims)["Hkv"] == 8


@pytest.mark.parametrize(
    ("name", "rest"),
    [
        (
            "flash_attn::_flash_attn_backward",
            (_Q, _KV, _KV, "0.", "0.088", "True", "-1", "-1", "0.", None, "False"),
        ),
        ("aiter::mha_bwd", ("0.", "0.088", "True", "-1", "-1", "False", _Q, _KV, _KV)),
        ("aiter::fmha_v3_bwd", ("0.", "0.088", "True", "-1", "-1", "False", "True", "1", _Q, _KV, _KV)),
        ("aiter::_flash_attn_backward", (_Q, _KV, _KV, "0.", "0.088", "True", "-1", "-1", None, "False")),
    ],
)
def test_dense_backward(name: str, rest: tuple[str | None, ...]) -> None:
    cost = costed(name, _Q, _Q, _KV, _KV, _Q, "fp32 2 32 1024", *rest)
    assert cost.flops == _FULL // 2 * 5 // 2
    assert cost.write_bytes == 2 * 1024 * (32 + 8 + 8) * 128 * 2


@pytest.mark.parametrize(
    ("name", "rest"),
    [
        ("flash_attn::_flash_attn_varlen_forward", ("1024", "1024", "0.", "0.088", "True", "-1", "-1")),
        (
            "aiter::mha_varlen_fwd",
            ("1024", "1024", "0", "0.", "0.088", "0.", "False", "True", "-1", "-1", "True", "False"),
        ),
        ("FlashAttnVarlenFunc", ("1024", "1024", "0.", None, "True", "0.", None, "False", "False")),
    ],
)
def test_packed_forward(name: str, rest: tuple[str | None, ...]) -> None:
    """Two sequences of 1024, the longest: exact."""
    cost = costed(name, *_PACKED, "i32 3", "i32 3", *rest)
    assert cost.flops == _FULL // 2
    assert cost.note == "causal: half of the scores"
    uneven = costed(name, *_PACKED, "i32 5", "i32 5", *rest)
    assert uneven.flops == _FULL // 2
    assert "upper bound" in uneven.note


def test_packed_backward() -> None:
    q, kv = _PACKED[0], _PACKED[1]
    cost = costed(
        "flash_attn::_flash_attn_varlen_backward", q, q, kv, kv, q, "fp32 32 2048", q, kv, kv, "i32 3",
        "i32 3", "1024", "1024", "0.", "0.088", "True", "-1", "-1",
    )  # fmt: skip
    assert cost.flops == _FULL // 2 * 5 // 2


def test_sliding_window() -> None:
    # Causal with a window of 2 keys back: 1, 2, 3, 3 scores a head.
    rest = ("0.", "0.088", "True", "2", "0", "0.", None, "False")
    cost = costed("flash_attn::_flash_attn_forward", *["bf16 1 4 1 8"] * 3, *rest)
    assert cost.flops == 4 * 8 * (1 + 2 + 3 + 3)
    assert cost.note == "masked scores not counted"


def test_decoding_sees_all_keys() -> None:
    rest = ("0.", "0.088", "True", "-1", "-1", "0.", None, "False")
    cost = costed("flash_attn::_flash_attn_forward", "bf16 4 1 8 64", *["bf16 4 500 8 64"] * 2, *rest)
    assert cost.flops == 4 * 4 * 8 * 500 * 64  # the mask ends at the bottom right


def test_autograd_backward_takes_its_forwards_sizes() -> None:
    forward = recorded("FlashAttnFunc", _Q, _KV, _KV, "0.", None, "True")
    cost = costed("FlashAttnFuncBackward", "bf16 2 1024 32 128", forward=forward)
    assert cost.flops == _FULL // 2 * 5 // 2
    with pytest.raises(Uncounted, match="forward"):
        costed("FlashAttnFuncBackward", "bf16 2 1024 32 128")


@pytest.mark.parametrize("layout", ["bf16 2 1024 32 128", "bf16 1024 2 32 128"])
def test_transformer_engine_in_either_layout(layout: str) -> None:
    arguments = ("True", "1024", "1024", "i32 3", "i32 3", layout, layout, layout, None, "0.088", "0.")
    cost = costed("FusedAttnFunc", *arguments)
    assert cost.flops == _FULL
    assert cost.note == "upper bound: the mask is not recorded"
    backward = costed("FusedAttnFuncBackward", layout, forward=recorded("FusedAttnFunc", *arguments))
    assert backward.flops == _FULL * 5 // 2


def test_flex_attention_is_bounded() -> None:
    tensor = "bf16 2 32 1024 128"
    assert costed("FlexAttentionAutogradOp", tensor, tensor, tensor).flops == _FULL
    forward = recorded("FlexAttentionAutogradOp", tensor, tensor, tensor)
    assert costed("FlexAttentionAutogradOpBackward", tensor, forward=forward).flops == _FULL * 5 // 2


def test_latent_decoding() -> None:
    """DeepSeek-V2: 128 heads, latents 512 wide with 64 of rotary; 8 sequences of 1000 tokens."""
    cost = costed(
        "aiter::mla_decode_stage1_asm_fwd", "bf16 8 128 576", "bf16 9000 1 1 576", "i32 9", "i32 9",
        "i32 8000", "i32 8", "1", "0.04", "fp32 8 4 128 512", "fp32 8 4 128 1", "bf16 8 128 512",
    )  # fmt: skip
    assert cost.flops == 2 * 128 * 8000 * (576 + 512)
    assert cost.read_bytes == (8 * 128 * 576 + 8000 * 576) * 2
    assert cost.note.startswith("upper bound")


def test_latent_decoding_by_the_label() -> None:
    """A graph captured with a buffer of pages for all that may come: the label has what came."""
    call = recorded(
        "aiter::mla_decode_stage1_asm_fwd", "bf16 8 128 576", "bf16 9000 1 1 576", "i32 9", "i32 9",
        "i32 900000", "i32 8", "1", "0.04", "fp32 8 4 128 512", "fp32 8 4 128 1", "bf16 8 128 512",
    )._replace(is_replayed=True)  # fmt: skip
    cost = at_step(call, ServingBatch(Lengths(0, 0, 0, 0), Lengths(8, 8000, 8, 8000)))
    assert cost.flops == 2 * 128 * 8000 * (576 + 512)
    assert cost.read_bytes == (8 * 128 * 576 + 8000 * 576) * 2
    with pytest.raises(Uncounted, match="those of the capture"):
        at_step(call)


@pytest.mark.parametrize("name", ["EvoformerAttention", "EvoformerFusedAttention"])
def test_blocks_of_alphafold(name: str) -> None:
    """128 sequences of 256 residues, 8 heads of 32, a mask of each sequence and a bias of each head."""
    x, biases = "bf16 1 128 256 8 32", ("bf16 1 128 1 1 256", "bf16 1 1 8 256 256")
    elements = 128 * 256 * 8 * 32
    cost = costed(name, x, x, x, *biases)
    assert cost.flops == 4 * 128 * 8 * 256 * 256 * 32
    assert cost.read_bytes == 2 * (3 * elements + 128 * 256 + 8 * 256 * 256)
    assert cost.write_bytes == 2 * elements + 4 * 128 * 8 * 256  # with the log-sum-exp
    backward = costed(f"{name}Backward", x, forward=recorded(name, x, x, x, *biases))
    assert backward.flops == cost.flops * 5 // 2
    with pytest.raises(Uncounted, match="unknown layout"):
        costed(name, "bf16 256 8 32", "bf16 256 8 32", "bf16 256 8 32")


def test_diffusers_and_xformers_share_the_order_of_arguments() -> None:
    q, k = "bf16 1 1024 24 128", "bf16 1 512 24 128"
    flops = 4 * 24 * 1024 * 512 * 128
    wrapped = costed("_diffusers_flash_attn_3::_flash_attn_forward", q, k, k, "0.088", "False", *[None] * 4)
    assert wrapped.flops == flops
    bounds = [None] * 5
    window = ("0.0", "0.088", "False", "-1", "-1", "False", None)
    flash = costed("xformers_flash::flash_fwd", q, k, k, *bounds[:3], "1024", "512", *window)
    assert flash.flops == flops

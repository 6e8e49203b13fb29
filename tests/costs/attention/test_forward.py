"""Attention, forward: counts against closed forms and against a mask written out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.costs.recorded import costed
from tracelens.costs import Uncounted
from tracelens.costs.attention import Mask, twice_unmasked

_FLASH = (None, None, "559", "559", "0.", "True", "False", "0.125", None, None, None, None)


def test_flash_as_recorded_on_mi300x() -> None:
    qkv = ["bf16 16 559 16 64"] * 3
    cost = costed("aten::_flash_attention_forward", *qkv, *_FLASH)
    # 4·B·H·N·N·D = 4·16·16·559·559·64 = 20478754816, half of it as it is causal.
    assert cost.flops == 20478754816 // 2 == 10239377408
    tensor = 16 * 559 * 16 * 64 * 2
    assert cost.read_bytes == 3 * tensor
    assert cost.write_bytes == tensor + 16 * 559 * 16 * 4  # the log-sum-exp
    assert (cost.dtype, cost.engine, cost.note) == ("bf16", "matrix", "causal: half of the scores")
    assert dict(cost.dims) == {"B": 16, "H": 16, "Nq": 559, "Nk": 559, "D": 64}


def test_both_layouts_count_alike() -> None:
    inner = costed("aten::_flash_attention_forward", *["bf16 16 559 16 64"] * 3, *_FLASH)
    outer = costed(
        "aten::_scaled_dot_product_flash_attention", *["bf16 16 16 559 64"] * 3, "0.", "True", "False", None
    )
    assert inner == outer


def test_latent_attention_as_recorded_on_h100() -> None:
    """DeepSeek-V2: keys 192 wide, values 128."""
    cost = costed(
        "aten::_cudnn_attention_forward", "bf16 2 16 2048 192", "bf16 2 16 2048 192", "bf16 2 16 2048 128",
        None, None, None, "2048", "2048", "True", "0.", "True", "False", "0.07216",
    )  # fmt: skip
    assert cost.flops == 2 * 2 * 16 * 2048 * 2048 * (192 + 128) // 2
    assert cost.write_bytes == 2 * 16 * 2048 * 128 * 2 + 2 * 16 * 2048 * 4
    assert ("Dv", 128) in cost.dims


def test_grouped_queries_have_the_flops_of_their_own_heads() -> None:
    wide = costed("aten::scaled_dot_product_attention", *["bf16 2 8 64 32"] * 3, None, "0.", "False")
    shared = costed(
        "aten::scaled_dot_product_attention", "bf16 2 8 64 32", *["bf16 2 2 64 32"] * 2, None, "0.", "False"
    )
    assert shared.flops == wide.flops == 4 * 2 * 8 * 64 * 64 * 32
    assert wide.read_bytes - shared.read_bytes == 2 * (2 * 6 * 64 * 32) * 2
    assert ("Hkv", 2) in shared.dims


def test_unequal_lengths_and_a_mask() -> None:
    cost = costed(
        "aten::scaled_dot_product_attention",
        "fp16 1 4 10 8",
        *["fp16 1 4 30 8"] * 2,
        "bool 10 30",
        "0.",
        "False",
    )
    assert cost.flops == 4 * 4 * 10 * 30 * 8
    assert cost.read_bytes == (4 * 10 * 8 + 2 * 4 * 30 * 8) * 2 + 300
    assert cost.write_bytes == 4 * 10 * 8 * 2  # no log-sum-exp


def test_causal_over_unequal_lengths_is_counted_out() -> None:
    # Top left: queries 0..3 see 1, 2, 3, 4 of 10 keys.
    cost = costed(
        "aten::_scaled_dot_product_efficient_attention", "fp16 1 1 4 8", *["fp16 1 1 10 8"] * 2, None,
        "False", "0.", "True",
    )  # fmt: skip
    assert cost.flops == 4 * 8 * (1 + 2 + 3 + 4)


def test_flash_attention_aligns_its_mask_at_the_bottom_right() -> None:
    cost = costed(
        "aten::_scaled_dot_product_flash_attention", "fp16 1 1 4 8", *["fp16 1 1 10 8"] * 2, "0.", "True"
    )
    assert cost.flops == 4 * 8 * (7 + 8 + 9 + 10)
    back = costed(
        "aten::_scaled_dot_product_flash_attention_backward", "fp16 1 1 4 8", "fp16 1 1 4 8",
        *["fp16 1 1 10 8"] * 2, "fp16 1 1 4 8", "fp32 1 1 4", None, None, "4", "10", "0.", "True",
    )  # fmt: skip
    assert back.flops == 10 * 8 * (7 + 8 + 9 + 10)


@pytest.mark.parametrize(("kind", "scores"), [("0", 40), ("1", 1 + 2 + 3 + 4), ("2", 7 + 8 + 9 + 10)])
def test_efficient_attention_has_two_causal_masks(kind: str, scores: int) -> None:
    cost = costed(
        "aten::_efficient_attention_forward", "fp16 1 4 1 8", *["fp16 1 10 1 8"] * 2, None, None, None, None,
        None, "0.", kind, "True",
    )  # fmt: skip
    assert cost.flops == 4 * 8 * scores


def test_packed_sequences() -> None:
    """Two sequences of 100 are counted exactly; three of at most 100 in 200 tokens are bounded."""
    qkv = ["bf16 200 8 64"] * 3
    rest = ("100", "100", "0.", "False", "False")
    even = costed("aten::_flash_attention_forward", *qkv, "i32 3", "i32 3", *rest)
    assert even.flops == 2 * (4 * 8 * 100 * 100 * 64)
    assert even.note == ""
    uneven = costed("aten::_flash_attention_forward", *qkv, "i32 4", "i32 4", *rest)
    assert uneven.flops == even.flops
    assert uneven.note.startswith("upper bound")


def test_packed_efficient_attention() -> None:
    cost = costed(
        "aten::_efficient_attention_forward", *["bf16 1 200 8 64"] * 3, None, "i32 3", "i32 3", "100", "100",
        "0.", "1", "True",
    )  # fmt: skip
    assert cost.flops == 2 * (4 * 8 * 100 * 100 * 64) // 2
    assert cost.note == "causal: half of the scores"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["bf16 2 3"] * 3, "dimensions"),
        (["bf16 1 4 8 16", "bf16 1 4 8 32", "bf16 1 4 8 16"], "disagree"),
        (["bf16 1 4 8 16", "bf16 1 4 8 16", "bf16 1 4 9 16"], "disagree"),
        (["bf16 1 4 8 16", "bf16 3 4 8 16", "bf16 3 4 8 16"], "disagree"),
        (["bf16 1 4 8 16", "bf16 1 3 8 16", "bf16 1 3 8 16"], "share"),
    ],
)
def test_what_cannot_be(arguments: list[str], reason: str) -> None:
    with pytest.raises(Uncounted, match=reason):
        costed("aten::scaled_dot_product_attention", *arguments, None, "0.", "False")


def test_an_unrecorded_mask_is_not_guessed() -> None:
    with pytest.raises(Uncounted, match="causal"):
        costed("aten::_flash_attention_forward", *["bf16 1 8 2 16"] * 3)


@given(
    nq=st.integers(0, 12), nk=st.integers(0, 12), causal=st.booleans(), left=st.integers(-1, 14),
    right=st.integers(-1, 14), top_left=st.booleans(),
)  # fmt: skip
def test_masks_written_out(nq: int, nk: int, causal: bool, left: int, right: int, top_left: bool) -> None:
    shift = 0 if top_left else nk - nq
    seen = sum(
        (left < 0 or key >= query + shift - left)
        and (key <= query + shift if causal else right < 0 or key <= query + shift + right)
        for query in range(nq)
        for key in range(nk)
    )
    twice, note = twice_unmasked(nq, nk, Mask(causal, left, right, top_left))
    if note == "causal: half of the scores":
        assert (nq, 2 * seen) == (nk, nq * nk + nq)  # the diagonal counts half
        assert twice == nq * nk
    else:
        assert twice == 2 * seen

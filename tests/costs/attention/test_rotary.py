"""Rotary embeddings."""

from __future__ import annotations

import pytest

from tests.costs.recorded import costed
from tracelens.costs import Uncounted

_X = 2048 * 2 * 16 * 128


def test_one_tensor_and_a_table() -> None:
    cost = costed("FusedRoPEFunc", "bf16 2048 2 16 128", "fp32 2048 1 1 128")
    assert cost.flops == 3 * _X
    assert cost.read_bytes == _X * 2 + 2048 * 128 * 4
    assert cost.write_bytes == _X * 2
    assert dict(cost.dims) == {"rows": 2048 * 2 * 16, "D": 128}


def test_backward_is_as_much_work() -> None:
    cost = costed("FusedRoPEFuncBackward", "bf16 2048 2 16 128")
    assert (cost.flops, cost.read_bytes, cost.write_bytes) == (3 * _X, 2 * _X, 2 * _X)


def test_into_another_tensor() -> None:
    """The result is an argument of AITER's ops."""
    x = "bf16 2048 2 16 128"
    cost = costed("aiter::rope_fwd_impl", x, x, "fp32 2048 1 1 64", "0", "True", "False")
    assert (cost.read_bytes, cost.write_bytes) == (_X * 2 + 2048 * 64 * 4, _X * 2)
    y = "bf16 2048 2 4 128"
    pair = costed("aiter::rope_cached_2c_fwd_impl", x, y, x, y, "bf16 2048 1 1 64", "bf16 2048 1 1 64")
    assert pair.flops == 3 * (_X + _X // 4)
    assert pair.write_bytes == (_X + _X // 4) * 2
    assert pair.read_bytes == pair.write_bytes + 2 * 2048 * 64 * 2


def test_in_place_at_positions() -> None:
    """Half of each head of 128 is turned, by the rows of the table for 10 tokens."""
    arguments = ("i64 10", "bf16 10 4096", "bf16 10 1024", "128", "bf16 32768 64", "True")
    cost = costed("_C::rotary_embedding", *arguments)
    turned = 10 * (4096 + 1024) // 2
    assert cost.flops == 3 * turned
    assert cost.write_bytes == turned * 2
    assert cost.read_bytes == turned * 2 + 10 * 8 + 10 * 64 * 2


def test_what_is_missing_is_named() -> None:
    with pytest.raises(Uncounted, match="recorded tensors"):
        costed("aiter::rope_fwd_impl", "bf16 4 4")
    with pytest.raises(Uncounted, match="wider than a head"):
        costed("_C::rotary_embedding", "i64 10", "bf16 10 64", None, "32", "bf16 100 64")


def test_into_others_by_positions() -> None:
    """DeepSeek-V3: 64 of 192 elements of a head are turned, the others copied."""
    x, y = "bf16 1 64 16 192", "bf16 1 64 1 192"
    arguments = (x, y, x, y, "bf16 163840 1 1 32", "bf16 163840 1 1 32", "i64 1 64", "0", "True", "True")
    cost = costed("aiter::rope_cached_positions_2c_fwd_impl", *arguments)
    elements = 64 * 17 * 192
    assert cost.flops == 3 * elements // 3
    assert cost.read_bytes == 2 * elements + 8 * 64 + 2 * 2 * 64 * 32
    assert cost.write_bytes == 2 * elements
    full = costed("aiter::rope_cached_positions_2c_fwd_impl", *arguments[:4], *["fp32 40 1 1 192"] * 2,
                  *arguments[6:8], "False", "True")  # fmt: skip
    assert full.flops == 3 * elements
    # A table of fewer rows than tokens is read whole.
    assert full.read_bytes == 2 * elements + 8 * 64 + 2 * 4 * 40 * 192

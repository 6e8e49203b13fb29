"""Fourier transforms: sizes and types as torch.fft gives them."""

from __future__ import annotations

import pytest

from tests.costs.recorded import costed
from tracelens.costs import Uncounted


def test_complex() -> None:
    cost = costed("aten::_fft_c2c", "c64 4 16 32", "[1, 2]", "0", "True")
    assert cost.flops == 5 * 4 * 512 * 9
    assert cost.read_bytes == cost.write_bytes == 4 * 512 * 8


def test_real_side_is_half_the_work() -> None:
    forward = costed("aten::_fft_r2c", "fp32 4 16 32", "[1, 2]", "0", "True")
    back = costed("aten::_fft_c2r", "c64 4 16 17", "[1, 2]", "2", "32")
    assert forward.flops == back.flops == 5 * 4 * 512 * 9 // 2
    assert (forward.read_bytes, forward.write_bytes) == (4 * 512 * 4, 4 * 16 * 17 * 8)
    assert (back.read_bytes, back.write_bytes) == (forward.write_bytes, forward.read_bytes)


def test_both_halves_of_a_real_transform() -> None:
    assert costed("aten::_fft_r2c", "fp32 8", "[-1]", "0", "False").write_bytes == 8 * 8


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        ("aten::_fft_c2c", ("c64 8", None), "dimensions"),
        ("aten::_fft_c2c", ("c64 8", "[1]"), "dimensions"),
        ("aten::_fft_c2r", ("c64 8", "[0]", "2", None), "no recorded value"),
        ("aten::_fft_r2c", ("bf16 8", "[0]", "0", "True"), "element type"),
    ],
)
def test_what_is_missing_is_named(name: str, arguments: tuple[str | None, ...], reason: str) -> None:
    with pytest.raises(Uncounted, match=reason):
        costed(name, *arguments)

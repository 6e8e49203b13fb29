"""Hyper-connections of 4 streams, against hand-worked counts."""

from __future__ import annotations

import pytest

from tests.costs.recorded import costed
from tracelens.costs import Uncounted

M, S, C = 64, 4, 4096
ROWS = S * S + 2 * S  # of the projection: 24
RESIDUAL, FN = "bf16 64 4 4096", "fp32 24 16384"
MIXES = ("fp32 64 4 1", "fp32 64 4 4")
LOGITS = ("fp32 2 64 24", "fp32 2 64")  # the inner dimension in two parts
_PROJECTION = 2 * M * ROWS * S * C + 2 * M * S * C


def test_logits() -> None:
    cost = costed("aiter::mhc_pre_gemm_sqrsum", *LOGITS, RESIDUAL, FN, "128")
    assert cost.flops == _PROJECTION
    assert cost.read_bytes == 2 * M * S * C + 4 * ROWS * S * C
    assert cost.write_bytes == 4 * (2 * M * ROWS + 2 * M)
    assert (cost.engine, cost.dtype) == ("matrix", "fp32")
    assert cost.dims == (("M", M), ("streams", S), ("C", C))


def test_after_a_layer() -> None:
    cost = costed("aiter::mhc_post", RESIDUAL, "bf16 64 4096", RESIDUAL, *MIXES, "-1")
    # Of each of 4 streams: the layer's output and 4 streams, a product and a sum each.
    assert cost.flops == M * S * C * 2 * 5
    assert cost.read_bytes == 2 * M * C + 2 * M * S * C + 4 * M * (S + S * S)
    assert (cost.write_bytes, cost.engine, cost.dtype) == (2 * M * S * C, "vector", "bf16")


def test_after_a_layer_with_the_next_logits() -> None:
    name = "aiter::mhc_fused_post_pre_gemm_sqrsum"
    cost = costed(name, *LOGITS, RESIDUAL, "bf16 64 4096", RESIDUAL, *MIXES, FN, "16", "32", "32")
    assert cost.flops == M * S * C * 2 * 5 + _PROJECTION
    # The next residual is written; that the projection needs it costs no second pass.
    assert cost.read_bytes == 2 * M * C + 2 * M * S * C + 4 * M * (S + S * S) + 4 * ROWS * S * C
    assert cost.write_bytes == 4 * (2 * M * ROWS + 2 * M) + 2 * M * S * C
    assert cost.engine == "matrix"


@pytest.mark.parametrize(("name", "norm"), [("mhc_pre_big_fuse", 0), ("mhc_pre_big_fuse_rmsnorm", 1)])
def test_before_a_layer(name: str, norm: int) -> None:
    weight = ["bf16 4096"] * norm
    cost = costed(f"aiter::{name}", *MIXES, "bf16 64 4096", *LOGITS, "fp32 3", "fp32 24", RESIDUAL, *weight)
    assert cost.flops == 2 * M * S * C + norm * 4 * M * C
    assert cost.read_bytes == 4 * (2 * M * ROWS + 2 * M + 3 + 24) + 2 * M * S * C + norm * 2 * C
    assert (cost.write_bytes, cost.engine) == (4 * M * (S + S * S) + 2 * M * C, "vector")


def test_shapes_that_do_not_fit_are_named() -> None:
    with pytest.raises(Uncounted, match="instead of 3"):
        costed("aiter::mhc_pre_gemm_sqrsum", *LOGITS, "bf16 64 16384", FN)
    with pytest.raises(Uncounted, match="disagree"):
        costed("aiter::mhc_pre_gemm_sqrsum", *LOGITS, RESIDUAL, "fp32 24 4096")

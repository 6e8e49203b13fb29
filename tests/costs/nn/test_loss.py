"""Losses."""

from __future__ import annotations

import pytest

from tests.costs.recorded import costed, recorded
from tracelens.costs import Uncounted


def test_likelihood_as_recorded_on_h100() -> None:
    """One of 32768 predictions a row is read: 4096 of them, with their targets."""
    cost = costed("aten::nll_loss_forward", "fp32 4096 32768", "i64 4096", None, "1", "-100")
    assert cost.flops == 2 * 4096
    assert cost.read_bytes == 4096 * (4 + 8)
    assert cost.write_bytes == 2 * 4  # loss and sum of weights
    assert dict(cost.dims) == {"rows": 4096, "classes": 32768}
    each = costed("aten::nll_loss_forward", "fp32 4096 32768", "i64 4096", None, "0", "-100")
    assert each.write_bytes == 4097 * 4
    assert costed("aten::nll_loss_forward", "fp32 8 10", "i64 8").note.startswith("one result assumed")


def test_likelihood_backward_leaves_zeros_to_others() -> None:
    cost = costed("aten::nll_loss_backward", "fp32", "fp32 4096 32768", "i64 4096", None, "1", "-100", "fp32")
    assert (cost.read_bytes, cost.write_bytes) == (4 + 4096 * 8, 4096 * 4)


def test_images_have_a_target_a_pixel() -> None:
    cost = costed("aten::nll_loss2d_forward", "fp32 2 10 4 4", "i64 2 4 4", "fp32 10", "1", "-100")
    assert cost.read_bytes == 32 * (4 + 8) + 40
    assert dict(cost.dims) == {"rows": 32, "classes": 10}


def test_fused_cross_entropy_makes_the_gradient() -> None:
    cost = costed("LigerCrossEntropyFunction", "bf16 4096 32768", "i64 4096")
    logits = 4096 * 32768
    assert cost.flops == 7 * logits
    assert cost.read_bytes == logits * 2 + 4096 * 8
    assert cost.write_bytes == logits * 2 + 4096 * 4
    forward = recorded("CrossEntropyFunction", "bf16 4096 32768", "i64 4096")
    backward = costed("CrossEntropyFunctionBackward", "fp32 4096", forward=forward)
    assert backward.read_bytes == backward.write_bytes == logits * 2
    with pytest.raises(Uncounted, match="forward"):
        costed("CrossEntropyFunctionBackward", "fp32 4096")


def test_cross_entropy_of_logits() -> None:
    cost = costed("aten::cross_entropy_loss", "fp32 8 10", "i64 8", None, "1", "-100", "0.")
    assert (cost.flops, cost.read_bytes, cost.write_bytes) == (400, 320 + 64, 4)


@pytest.mark.parametrize(("reduction", "results"), [("0", 10000), ("1", 1), ("2", 1)])
def test_squared_error_as_recorded_on_mi300x(reduction: str, results: int) -> None:
    cost = costed("aten::mse_loss", "bf16 10 1000", "bf16 10 1000", reduction)
    assert (cost.flops, cost.read_bytes, cost.write_bytes) == (30000, 40000, 2 * results)


def test_squared_error_backward_as_recorded_on_mi300x() -> None:
    cost = costed("aten::mse_loss_backward", "bf16", "bf16 10 1000", "bf16 10 1000", "1", "bf16 10 1000")
    assert (cost.flops, cost.read_bytes, cost.write_bytes) == (30000, 40002, 20000)


def test_weights_are_read() -> None:
    bare = costed("aten::binary_cross_entropy_with_logits", "fp32 8", "fp32 8", None, None, "1")
    weighted = costed("aten::binary_cross_entropy_with_logits", "fp32 8", "fp32 8", "fp32 8", "fp32 1", "1")
    assert bare.flops == weighted.flops == 64
    assert weighted.read_bytes - bare.read_bytes == 36
    backward = costed("aten::binary_cross_entropy_backward", "fp32", "fp32 8", "fp32 8", None, "1")
    assert (backward.read_bytes, backward.write_bytes) == (4 + 64, 32)

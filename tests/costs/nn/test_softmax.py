"""Softmax and its kin."""

from __future__ import annotations

import pytest

from tests.costs.recorded import costed


def test_softmax_as_recorded_on_mi300x() -> None:
    cost = costed("aten::_softmax", "bf16 8 12 3137 3137", "-1", "False")
    elements = 8 * 12 * 3137 * 3137
    assert cost.flops == 5 * elements
    assert cost.read_bytes == cost.write_bytes == 2 * elements
    assert dict(cost.dims) == {"rows": 8 * 12 * 3137, "width": 3137}


def test_half_types_may_widen() -> None:
    assert costed("aten::_log_softmax", "bf16 4 10", "1", "True").write_bytes == 4 * 40
    assert costed("aten::log_softmax", "bf16 4 10", "1", "6").write_bytes == 4 * 40
    assert costed("aten::softmax", "bf16 4 10", "1", None).write_bytes == 2 * 40


@pytest.mark.parametrize(("kind", "width"), [("6", 4), ("15", 2), ("5", 2), ("7", 8), (None, 4)])
def test_backward_gives_the_inputs_type(kind: str | None, width: int) -> None:
    cost = costed("aten::_log_softmax_backward_data", "fp32 4096 32768", "fp32 4096 32768", "1", kind)
    elements = 4096 * 32768
    assert cost.flops == 4 * elements
    assert cost.read_bytes == 2 * 4 * elements
    assert cost.write_bytes == width * elements


def test_masks_and_scales() -> None:
    masked = costed("ScaledMaskedSoftmax", "bf16 2 4 8 8", "bool 2 1 8 8", "1.0")
    assert (masked.flops, masked.read_bytes) == (6 * 512, 2 * 512 + 128)
    assert costed("ScaledSoftmax", "bf16 2 4 8 8", "1.0").flops == 6 * 512
    causal = costed("ScaledUpperTriangMaskedSoftmax", "bf16 8 8 8", "1.0")
    assert (causal.flops, causal.read_bytes, causal.write_bytes) == (3 * 512, 512, 2 * 512)
    assert causal.note == "causal: half of the scores"


def test_backward_of_masked_ones() -> None:
    ours = costed("aten::_masked_softmax_backward", "fp32 4 10", "fp32 4 10", "bool 4 10")
    assert (ours.flops, ours.read_bytes, ours.write_bytes) == (200, 2 * 160 + 40, 160)
    theirs = costed("ScaledMaskedSoftmaxBackward", "bf16 2 4 8 8")
    assert (theirs.flops, theirs.read_bytes, theirs.write_bytes) == (5 * 512, 2 * 1024, 1024)


def test_nothing_to_do() -> None:
    cost = costed("aten::_softmax", "fp32 4 0", "1", "False")
    assert (cost.flops, cost.read_bytes, cost.dims) == (0, 0, ())

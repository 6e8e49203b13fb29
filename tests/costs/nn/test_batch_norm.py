"""Batch norm in training and inference."""

from __future__ import annotations

import pytest

from tests.costs.recorded import costed
from tracelens.costs import Uncounted

_X = "bf16 10 64 56 56"
_ELEMENTS = 10 * 64 * 56 * 56
_VECTORS = ("bf16 64",) * 4


def test_training_as_recorded_on_mi300x() -> None:
    cost = costed("aten::native_batch_norm", _X, *_VECTORS, "True", "0.1", "1e-5")
    assert cost.flops == 7 * _ELEMENTS
    assert cost.read_bytes == (_ELEMENTS + 4 * 64) * 2
    assert cost.write_bytes == (_ELEMENTS + 2 * 64) * 2 + 2 * 64 * 4  # running and saved statistics
    assert dict(cost.dims) == {"C": 64, "each": 10 * 56 * 56}


def test_inference_writes_no_statistics() -> None:
    cost = costed("aten::native_batch_norm", _X, *_VECTORS, "False", "0.1", "1e-5")
    assert cost.flops == 2 * _ELEMENTS
    assert cost.write_bytes == _ELEMENTS * 2
    assert costed("aten::_native_batch_norm_legit_no_training", _X, *_VECTORS, "0.1", "1e-5") == cost


def test_an_unrecorded_mode_is_told() -> None:
    cost = costed("aten::cudnn_batch_norm", _X, *_VECTORS)
    assert cost.flops == 7 * _ELEMENTS
    assert cost.note.startswith("training assumed")


def test_backward_as_recorded_on_mi300x() -> None:
    saved = ("fp32 64", "fp32 64")
    rest = ("bf16 64", "bf16 64", "bf16 64", *saved)
    cost = costed("aten::native_batch_norm_backward", _X, _X, *rest, "True", "1e-5", "[True, True, True]")
    assert cost.flops == 9 * _ELEMENTS
    assert cost.read_bytes == (2 * _ELEMENTS + 64) * 2 + 2 * 64 * 4  # running statistics are not needed
    assert cost.write_bytes == (_ELEMENTS + 2 * 64) * 2
    assert costed("aten::miopen_batch_norm_backward", _X, _X, *rest, "1e-5") == cost
    frozen = costed(
        "aten::native_batch_norm_backward", _X, _X, *rest, "False", "1e-5", "[True, False, False]"
    )
    assert frozen.flops == 5 * _ELEMENTS
    assert frozen.read_bytes == (2 * _ELEMENTS + 3 * 64) * 2
    assert frozen.write_bytes == _ELEMENTS * 2


def test_an_input_without_channels() -> None:
    with pytest.raises(Uncounted, match="channels"):
        costed("aten::native_batch_norm", "fp32 8", None, None, None, None, "True")

"""Norms over rows and groups."""

from __future__ import annotations

import pytest

from tests.costs.recorded import costed, recorded
from tracelens.costs import Uncounted

_ROWS = 4 * 197
_X = _ROWS * 768


def test_layer_norm_as_recorded_on_mi300x() -> None:
    cost = costed("aten::native_layer_norm", "bf16 4 197 768", "[768]", "bf16 768", "bf16 768", "1e-12")
    assert cost.flops == 7 * _X
    assert cost.read_bytes == (_X + 2 * 768) * 2
    assert cost.write_bytes == _X * 2 + 2 * _ROWS * 4  # mean and deviation in FP32
    assert dict(cost.dims) == {"rows": _ROWS, "width": 768}
    assert (cost.dtype, cost.engine) == ("bf16", "vector")


def test_layer_norm_without_parameters_or_values() -> None:
    assert costed("aten::native_layer_norm", "fp32 8 16", "[16]", None, None, "1e-5").flops == 5 * 128
    assert costed("aten::native_layer_norm", "fp32 8 16", None, "fp32 16", None).flops == 6 * 128
    with pytest.raises(Uncounted, match="normalized shape"):
        costed("aten::native_layer_norm", "fp32 8 16", None, None, None)
    with pytest.raises(Uncounted, match="divide"):
        costed("aten::native_layer_norm", "fp32 8 16", "[15]", None, None)


def test_rms_norm_of_heads() -> None:
    cost = costed("aten::_fused_rms_norm", "bf16 2048 1 16 128", "[128]", "bf16 128", None)
    elements = 2048 * 16 * 128
    assert cost.flops == 4 * elements
    assert cost.read_bytes == (elements + 128) * 2
    assert cost.write_bytes == elements * 2 + 2048 * 16 * 4


def test_rms_norm_backward_as_recorded_on_h200() -> None:
    x = "bf16 2048 1 16 128"
    rest = ("[128]", "fp32 2048 1 16 1", "bf16 128")
    elements, rows = 2048 * 16 * 128, 2048 * 16
    both = costed("aten::_fused_rms_norm_backward", x, x, *rest, "[True, True]")
    assert both.flops == 8 * elements
    assert both.read_bytes == (2 * elements + 128) * 2 + rows * 4
    assert both.write_bytes == (elements + 128) * 2
    one = costed("aten::_fused_rms_norm_backward", x, x, *rest, "[True, False]")
    assert (one.flops, one.write_bytes) == (6 * elements, elements * 2)


def test_layer_norm_backward() -> None:
    arguments = (
        "fp32 1024 512",
        "fp32 1024 512",
        "[512]",
        "fp32 1024 1",
        "fp32 1024 1",
        "fp32 512",
        "fp32 512",
    )
    cost = costed("aten::native_layer_norm_backward", *arguments, "[True, True, True]")
    elements = 1024 * 512
    assert cost.flops == 12 * elements
    assert cost.read_bytes == (2 * elements + 2 * 1024 + 512) * 4  # the bias is not needed
    assert cost.write_bytes == (elements + 2 * 512) * 4
    assert cost.note == ""
    unknown = costed("aten::native_layer_norm_backward", *arguments)
    assert (unknown.flops, unknown.write_bytes) == (cost.flops, cost.write_bytes)
    assert unknown.note.startswith("all gradients assumed")


def test_group_norm_both_ways() -> None:
    native = costed(
        "aten::native_group_norm", "fp16 2 8 10 10", "fp16 8", "fp16 8", "2", "8", "100", "4", "1e-5"
    )
    public = costed("aten::group_norm", "fp16 2 8 10 10", "4", "fp16 8", "fp16 8", "1e-5", "True")
    assert native == public
    assert native.flops == 7 * 1600
    assert native.write_bytes == (1600 + 2 * 8) * 2  # 2 samples of 4 groups
    backward = costed(
        "aten::native_group_norm_backward", "fp16 2 8 10 10", "fp16 2 8 10 10", "fp16 2 4", "fp16 2 4",
        "fp16 8", "2", "8", "100", "4", "[True, True, True]",
    )  # fmt: skip
    assert backward.flops == 12 * 1600
    assert backward.write_bytes == (1600 + 2 * 8) * 2


@pytest.mark.parametrize(
    ("name", "arguments", "reads", "writes"),
    [
        ("_C::rms_norm", ("x", "x", "w", "1e-6"), 1, 1),
        ("_C::fused_add_rms_norm", ("x", "x", "w", "1e-6"), 2, 2),
        ("aiter::rms_norm", ("x", "w", "1e-6"), 1, 1),
        ("aiter::rmsnorm2d_fwd_with_add", ("x", "x", "x", "x", "w", "1e-6"), 2, 2),
        ("sgl_kernel::fused_add_rmsnorm", ("x", "x", "w", "1e-6", "True"), 2, 2),
        ("FusedRMSNormAffineFunction", ("x", "w", "1e-6"), 1, 1),
    ],
)
def test_library_norms(name: str, arguments: tuple[str, ...], reads: int, writes: int) -> None:
    tensors = {"x": "bf16 64 4096", "w": "bf16 4096"}
    cost = costed(name, *(tensors.get(word, word) for word in arguments))
    each = 64 * 4096
    assert cost.read_bytes == (reads * each + 4096) * 2
    assert cost.write_bytes == writes * each * 2
    assert cost.flops == (3 + reads) * each


def test_quantised_output_is_a_byte_an_element() -> None:
    cost = costed(
        "_C::rms_norm_static_fp8_quant", "fp8e4m3 64 4096", "bf16 64 4096", "bf16 4096", "fp32 1", "1e-6"
    )
    assert cost.write_bytes == 64 * 4096
    assert cost.read_bytes == (64 * 4096 + 4096) * 2 + 4


def test_library_backward_takes_its_forwards_sizes() -> None:
    forward = recorded("FusedLayerNormAffineFunction", "bf16 64 4096", "bf16 4096", "bf16 4096")
    cost = costed("FusedLayerNormAffineFunctionBackward", "bf16 64 4096", forward=forward)
    assert cost.flops == 12 * 64 * 4096
    assert cost.read_bytes == (2 * 64 * 4096 + 2 * 4096) * 2
    assert cost.write_bytes == (64 * 4096 + 2 * 4096) * 2
    with pytest.raises(Uncounted, match="forward"):
        costed("FusedLayerNormAffineFunctionBackward", "bf16 64 4096")


def test_aiter_layer_norms() -> None:
    plain = costed("aiter::layernorm2d_fwd", "bf16 8 64", "bf16 64", "bf16 64", "1e-05")
    assert (plain.flops, plain.read_bytes, plain.write_bytes) == (7 * 512, 2 * (512 + 128), 2 * 512)
    rows = ["bf16 8 64"] * 4
    added = costed("aiter::layernorm2d_fwd_with_add", *rows, "bf16 64", "bf16 64", "1e-05")
    assert (added.flops, added.read_bytes, added.write_bytes) == (8 * 512, 2 * (1024 + 128), 2 * 1024)

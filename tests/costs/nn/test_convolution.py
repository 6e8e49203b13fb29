"""Convolutions against closed forms and an output counted tap by tap."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.costs.recorded import costed, recorded
from tracelens.costs import OpCost, Uncounted

_ONES = "[1, 1]"


def convolved(
    x: str, weight: str, stride: str, padding: str, dilation: str = _ONES, groups: str = "1"
) -> OpCost:
    return costed("aten::convolution", x, weight, None, stride, padding, dilation, "False", "[0, 0]", groups)


def test_patches_as_recorded_on_mi300x() -> None:
    """ViT's patch embedding: 14·14 outputs of 768 channels, each an inner product of 3·16·16."""
    arguments = ("[0, 0]", "[16, 16]", _ONES, "1", "False", "False")
    x, weight, bias = "bf16 4 3 224 224", "bf16 768 3 16 16", "bf16 768"
    cost = costed("aten::miopen_convolution", x, weight, bias, *arguments)
    assert cost.flops == 2 * (4 * 768 * 14 * 14) * (3 * 16 * 16) == 924844032
    assert cost.read_bytes == (4 * 3 * 224 * 224 + 768 * 3 * 16 * 16 + 768) * 2
    assert cost.write_bytes == 4 * 768 * 14 * 14 * 2
    assert dict(cost.dims) == {"N": 4, "C": 3, "K": 768, "H": 224, "W": 224, "R": 16, "S": 16}
    assert (cost.dtype, cost.engine) == ("bf16", "matrix")


def test_groups_and_depthwise() -> None:
    whole = convolved("fp16 2 8 10 10", "fp16 16 8 3 3", _ONES, _ONES)
    assert convolved("fp16 2 8 10 10", "fp16 16 2 3 3", _ONES, _ONES, groups="4").flops * 4 == whole.flops
    deep = costed(
        "aten::_conv_depthwise2d", "fp16 2 8 10 10", "fp16 8 1 3 3", "[3, 3]", None, _ONES, _ONES, _ONES
    )
    assert deep.flops == 2 * (2 * 8 * 10 * 10) * 9
    assert deep.engine == "vector"


@pytest.mark.parametrize(
    ("name", "x", "weight", "ones", "taps"),
    [
        ("aten::conv1d", "fp32 2 4 32", "fp32 8 4 3", "[1]", 3),
        ("aten::conv3d", "fp32 2 4 8 8 8", "fp32 8 4 3 3 3", "[1]", 27),
    ],
)
def test_one_and_three_dimensions(name: str, x: str, weight: str, ones: str, taps: int) -> None:
    cost = costed(name, x, weight, None, ones, ones, ones, "1")  # padding 1 keeps the size
    outputs = 2 * 8 * (32 if taps == 3 else 512)
    assert cost.flops == 2 * outputs * 4 * taps
    assert cost.write_bytes == outputs * 4


def test_transposed() -> None:
    """5·5 inputs spread by stride 2: outputs (5 - 1)·2 - 2 + 3 = 9 to a side, 10 with output padding."""
    arguments = ("[2, 2]", _ONES, _ONES, "True", _ONES, "1")
    cost = costed("aten::convolution", "fp32 1 4 5 5", "fp32 4 6 3 3", None, *arguments)
    assert cost.flops == 2 * (4 * 25) * (6 * 9)
    assert cost.write_bytes == 6 * 10 * 10 * 4
    public = costed(
        "aten::conv_transpose2d", "fp32 1 4 5 5", "fp32 4 6 3 3", None, "[2, 2]", _ONES, _ONES, "1", _ONES
    )
    assert (public.flops, public.write_bytes) == (cost.flops, cost.write_bytes)


def test_an_input_without_batch() -> None:
    cost = costed("aten::conv2d", "fp32 4 8 8", "fp32 6 4 1 1", None, "[1]", "[0]", "[1]", "1")
    assert cost.flops == 2 * (6 * 64) * 4
    assert cost.dims[0] == ("N", 1)


def test_tensor_cores_on_single_precision() -> None:
    arguments = ("fp32 1 4 8 8", "fp32 6 4 1 1", "[0, 0]", _ONES, _ONES, "1", "False", "False", "True")
    plain = costed("aten::cudnn_convolution", *arguments, kernel="implicit_convolve_sgemm")
    tensor = costed(
        "aten::cudnn_convolution", *arguments, kernel="sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32"
    )
    assert (plain.dtype, tensor.dtype) == ("fp32", "tf32")


@pytest.mark.parametrize(
    ("mask", "products", "written", "note"),
    [
        ("[True, True, False]", 2, 10 * 64 * 56 * 56 + 64 * 64 * 9, ""),
        ("[True, True, True]", 2, 10 * 64 * 56 * 56 + 64 * 64 * 9 + 64, ""),
        ("[False, True, False]", 1, 64 * 64 * 9, "no input gradient"),
        ("[True, False, False]", 1, 10 * 64 * 56 * 56, "no filter gradient"),
        ("[False, False, True]", 0, 64, "no input gradient, no filter gradient"),
    ],
)
def test_gradients_that_are_wanted(mask: str, products: int, written: int, note: str) -> None:
    """As recorded on MI300X (ResNet-18), where one product is 2·(10·64·56·56)·(64·9) = 2312110080."""
    x = "bf16 10 64 56 56"
    cost = costed(
        "aten::convolution_backward",
        x,
        x,
        "bf16 64 64 3 3",
        "[0]",
        _ONES,
        _ONES,
        _ONES,
        "False",
        "[0, 0]",
        "1",
        mask,
    )
    assert cost.flops == products * 2312110080
    assert cost.write_bytes == written * 2
    assert cost.note == note


def test_first_layer_has_no_input_gradient() -> None:
    """ResNet-18's first convolution on MI300X: 2·(10·64·112·112)·(3·49), once."""
    cost = costed(
        "aten::convolution_backward", "bf16 10 64 112 112", "bf16 10 3 224 224", "bf16 64 3 7 7", "[0]",
        "[2, 2]", "[3, 3]", _ONES, "False", "[0, 0]", "1", "[False, True, False]",
    )  # fmt: skip
    assert cost.flops == 2 * (10 * 64 * 112 * 112) * (3 * 49) == 2360279040
    assert cost.read_bytes == (10 * 64 * 112 * 112 + 10 * 3 * 224 * 224) * 2  # the filter is not needed


def test_fused_backward_takes_its_forwards_sizes() -> None:
    forward = recorded("ConvBiasReLU_", "fp16 2 8 10 10", "fp16 16 8 3 3", "fp16 16", "1", "1")
    cost = costed("ConvBiasReLU_Backward", "fp16 2 16 10 10", forward=forward)
    assert cost.flops == 2 * (2 * (2 * 16 * 100) * (8 * 9))
    with pytest.raises(Uncounted, match="forward"):
        costed("ConvBiasReLU_Backward", "fp16 2 16 10 10")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("fp32 2 3", "fp32 2 3"), "dimensions"),
        (("fp32 1 4 8 8", "fp32 6 4 1 1", None, "[1, 1]", None, "[1, 1]", "False", "[0, 0]", "1"), "padding"),
        (
            ("fp32 1 4 8 8", "fp32 6 4 1 1", None, "[0, 0]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1"),
            "stride",
        ),
        (
            ("fp32 1 4 8 8", "fp32 6 4 1 1", None, "[1, 1]", "[0, 0]", "[1, 1]", "False", "[0, 0]"),
            "argument 8",
        ),
    ],
)
def test_what_is_missing_is_named(arguments: tuple[str | None, ...], reason: str) -> None:
    with pytest.raises(Uncounted, match=reason):
        costed("aten::convolution", *arguments)


@given(
    n=st.integers(1, 12), k=st.integers(1, 4), stride=st.integers(1, 3), pad=st.integers(0, 3),
    dilation=st.integers(1, 3),
)  # fmt: skip
def test_outputs_counted_one_by_one(n: int, k: int, stride: int, pad: int, dilation: int) -> None:
    begins = range(-pad, n + pad - dilation * (k - 1), stride)
    cost = convolved(
        f"fp32 1 1 {n} 1", f"fp32 1 1 {k} 1", f"[{stride}, 1]", f"[{pad}, 0]", f"[{dilation}, 1]"
    )
    assert cost.flops == 2 * len(begins) * k
    assert cost.write_bytes == 4 * len(begins)

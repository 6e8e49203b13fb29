"""Pooling and resampling: sizes as PyTorch's own ops give them, counts in closed form."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.costs.recorded import costed
from tracelens.costs import Uncounted


def test_max_pool_as_recorded_on_mi300x() -> None:
    rest = ("[3, 3]", "[2, 2]", "[1, 1]", "[1, 1]", "False")
    cost = costed("aten::max_pool2d_with_indices", "bf16 10 64 112 112", *rest)
    outputs = 10 * 64 * 56 * 56
    assert cost.flops == 9 * outputs
    assert cost.read_bytes == 10 * 64 * 112 * 112 * 2
    assert cost.write_bytes == outputs * (2 + 8)
    assert dict(cost.dims) == {"planes": 640, "H": 112, "W": 112, "Hout": 56, "Wout": 56}
    x, y = "bf16 10 64 112 112", "bf16 10 64 56 56"
    back = costed("aten::max_pool2d_with_indices_backward", y, x, *rest, "i64 10 64 56 56")
    assert (back.read_bytes, back.write_bytes) == (outputs * 10, 10 * 64 * 112 * 112 * 2)


@pytest.mark.parametrize(
    ("window", "stride", "padding", "dilation", "ceil", "sides"),
    [  # of 17 x 19, as torch.nn.functional.max_pool2d gives them
        (3, 2, 1, 1, "False", (9, 10)),
        (3, 2, 1, 1, "True", (9, 10)),
        (2, 2, 0, 1, "True", (9, 10)),
        (2, 2, 0, 1, "False", (8, 9)),
        (3, 2, 0, 2, "True", (7, 8)),
        (5, 3, 2, 1, "True", (7, 7)),
    ],
)
def test_sizes(
    window: int, stride: int, padding: int, dilation: int, ceil: str, sides: tuple[int, int]
) -> None:
    rest = (f"[{window}]", f"[{stride}]", f"[{padding}]", f"[{dilation}]", ceil)
    cost = costed("aten::max_pool2d", "fp32 2 6 17 19", *rest)
    assert cost.write_bytes == 2 * 6 * sides[0] * sides[1] * 4
    assert (dict(cost.dims)["Hout"], dict(cost.dims)["Wout"]) == sides


def test_no_stride_is_the_window() -> None:
    cost = costed("aten::avg_pool2d", "fp32 2 6 16 16", "[4, 4]", "[]", "[0, 0]", "False", "True", None)
    assert cost.write_bytes == 2 * 6 * 4 * 4 * 4
    assert cost.flops == 2 * 6 * 16 * 16
    back = costed(
        "aten::avg_pool2d_backward",
        "fp32 2 6 4 4",
        "fp32 2 6 16 16",
        "[4, 4]",
        "[]",
        "[0, 0]",
        "False",
        "True",
    )
    assert (back.flops, back.read_bytes, back.write_bytes) == (2 * 6 * 256, 2 * 6 * 16 * 4, 2 * 6 * 256 * 4)


def test_adaptive() -> None:
    mean = costed("aten::_adaptive_avg_pool2d", "fp32 2 6 17 19", "[5, 4]")
    assert (mean.flops, mean.write_bytes) == (2 * 6 * 17 * 19, 2 * 6 * 20 * 4)
    most = costed("aten::adaptive_max_pool2d", "fp32 2 6 17 19", "[5, 4]")
    assert most.write_bytes == 2 * 6 * 20 * (4 + 8)
    back = costed("aten::_adaptive_avg_pool2d_backward", "fp32 2 6 5 4", "fp32 2 6 17 19")
    assert back.write_bytes == 2 * 6 * 17 * 19 * 4
    back = costed("aten::adaptive_max_pool2d_backward", "fp32 2 6 5 4", "fp32 2 6 17 19", "i64 2 6 5 4")
    assert back.read_bytes == 2 * 6 * 20 * (4 + 8)


def test_upsampling_as_recorded_on_mi300x() -> None:
    cost = costed("aten::upsample_nearest1d", "bf16 1 768 8", "[128]", None)
    assert (cost.flops, cost.read_bytes, cost.write_bytes) == (0, 768 * 8 * 2, 768 * 128 * 2)


@pytest.mark.parametrize(("kind", "flops"), [("bilinear", 8), ("bicubic", 32)])
def test_interpolation(kind: str, flops: int) -> None:
    cost = costed(f"aten::upsample_{kind}2d", "fp32 2 3 8 8", "[16, 16]", "False", None, None)
    outputs = 2 * 3 * 16 * 16
    assert (cost.flops, cost.read_bytes, cost.write_bytes) == (flops * outputs, 2 * 3 * 64 * 4, outputs * 4)
    back = costed(f"aten::upsample_{kind}2d_backward", "fp32 2 3 16 16", "[16, 16]", "[2, 3, 8, 8]", "False")
    assert (back.flops, back.read_bytes, back.write_bytes) == (flops * outputs, outputs * 4, 2 * 3 * 64 * 4)


def test_shrinking_to_the_nearest_reads_no_more_than_it_writes() -> None:
    assert costed("aten::upsample_nearest2d", "fp32 1 1 100 100", "[10, 10]", None, None).read_bytes == 400


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        ("aten::max_pool2d", ("fp32 2 6 17 19",), "window"),
        ("aten::max_pool2d", ("fp32 2 6 17 19", "[3, 3]", "[2, 2]"), "padding"),
        ("aten::max_pool2d", ("fp32 19", "[3, 3]", "[2, 2]", "[0, 0]", "[1, 1]"), "dimensions"),
        ("aten::upsample_nearest2d", ("fp32 2 3 8 8", None, "[2., 2.]"), "size of the output"),
        ("aten::upsample_nearest2d_backward", ("fp32 2 3 8 8", "[8, 8]"), "size of the input"),
    ],
)
def test_what_is_missing_is_named(name: str, arguments: tuple[str | None, ...], reason: str) -> None:
    with pytest.raises(Uncounted, match=reason):
        costed(name, *arguments)


@given(
    n=st.integers(1, 20),
    window=st.integers(1, 5),
    stride=st.integers(1, 4),
    pad=st.integers(0, 2),
    ceil=st.booleans(),
)
def test_windows_counted_one_by_one(n: int, window: int, stride: int, pad: int, ceil: bool) -> None:
    pad = min(pad, window // 2)
    if n + 2 * pad < window:
        return
    begins = [-pad]
    while begins[-1] + stride + window <= n + pad:
        begins.append(begins[-1] + stride)
    # Rounding up adds a window that reaches past the end, unless it would begin in the padding there.
    if ceil and begins[-1] + window < n + pad and begins[-1] + stride < n:
        begins.append(begins[-1] + stride)
    arguments = (f"[{window}]", f"[{stride}]", f"[{pad}]", "[1]", str(ceil))
    cost = costed("aten::max_pool1d", f"fp32 1 1 {n}", *arguments)
    assert cost.write_bytes == 4 * len(begins)


def test_antialiased_upsampling_mixes_one_dimension_after_the_other() -> None:
    cost = costed("aten::_upsample_bicubic2d_aa", "fp32 1 3 8 8", "[16, 32]", "False", None, None)
    # 8 rows of 32 pixels, then 16 rows: 4 neighbors each.
    assert cost.flops == 2 * 3 * 4 * (8 * 32 + 16 * 32)
    assert (cost.read_bytes, cost.write_bytes) == (3 * 64 * 4, 3 * 16 * 32 * 4)
    smaller = costed("aten::_upsample_bilinear2d_aa", "fp32 1 1 12 4", "[4, 4]", "False", None, None)
    # A third of the rows: windows of 2 x 3 rows, and of 2 columns.
    assert smaller.flops == 2 * (2 * 12 * 4 + 6 * 4 * 4)


@pytest.mark.parametrize(
    ("x", "grid", "mode", "neighbors", "outputs"),
    [
        ("fp32 2 3 8 8", "fp32 2 4 5 2", "0", 4, 2 * 3 * 20),
        ("fp32 2 3 8 8", "fp32 2 4 5 2", "2", 16, 2 * 3 * 20),
        ("fp32 2 3 8 8 8", "fp32 2 4 5 6 3", "0", 8, 2 * 3 * 120),
        ("fp32 2 3 8 8", "fp32 2 4 5 2", "1", 0, 2 * 3 * 20),
    ],
)
def test_grid_sampling(x: str, grid: str, mode: str, neighbors: int, outputs: int) -> None:
    name = "aten::grid_sampler_3d" if len(grid.split()) == 6 else "aten::grid_sampler_2d"
    cost = costed(name, x, grid, mode, "0", "False")
    assert cost.flops == 2 * neighbors * outputs
    assert cost.write_bytes == 4 * outputs
    bytes_of = {text: 4 * np.prod([int(word) for word in text.split()[1:]]) for text in (x, grid)}
    assert cost.read_bytes == bytes_of[grid] + min(bytes_of[x], 4 * max(neighbors, 1) * outputs)

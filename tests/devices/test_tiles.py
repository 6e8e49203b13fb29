"""GEMMs from macro tiles: limits, order, and the published times that set no number of the model."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.devices.test_bundled import DEVICES
from tracelens.devices import Device, GemmSizes, device, gemm_ns, gemm_rate
from tracelens.dtypes import BITS

AMD = [item for item in DEVICES if item.vendor == "AMD"]
MI300X, MI355X = device("mi300x"), device("mi355x")
PUBLISHED = tomllib.loads((Path(__file__).parent / "published_gemms.toml").read_text())

# Rows of an even number of bytes are loaded alike.
sizes = st.integers(1, 2000).map(lambda size: 4 * size)


def time_ns(item: Device, m: float, k: float, n: float, matrices: int = 1, dtype: str = "bf16") -> float:
    needed = gemm_ns(item, GemmSizes(m, k, n, matrices), dtype)
    assert needed is not None
    return needed


@given(st.sampled_from(AMD), sizes, sizes, sizes, st.integers(1, 64), st.sampled_from([1, 2, 3, 10]))
@settings(deadline=None, max_examples=60)
def test_more_of_any_size_takes_no_less(
    item: Device, m: int, k: int, n: int, matrices: int, factor: int
) -> None:
    base = time_ns(item, m, k, n, matrices)
    for larger in ((m * factor, k, n), (m, k * factor, n), (m, k, n * factor), (m + 4, k, n), (m, k + 4, n)):
        assert time_ns(item, *larger, matrices) >= base
    assert time_ns(item, m, k, n, matrices + 1) >= base


@given(
    st.sampled_from(AMD), sizes, sizes, sizes, st.integers(1, 64), st.sampled_from(["bf16", "fp8", "fp32"])
)
@settings(deadline=None, max_examples=60)
def test_neither_peak_nor_bandwidth_is_exceeded(
    item: Device, m: int, k: int, n: int, matrices: int, dtype: str
) -> None:
    peak, gemm = item.peak("matrix", dtype), GemmSizes(m, k, n, matrices)
    if peak is None:
        assert gemm_ns(item, gemm, dtype) is None
        return
    needed_s = time_ns(item, m, k, n, matrices, dtype) / 1e9
    moved = matrices * (m * k + k * n) * BITS[dtype] / 8
    assert needed_s > gemm.flops / (item.max_achievable(dtype) or peak)
    assert needed_s > moved / item.hbm_bytes_per_s


def test_a_tile_more_than_units_is_another_wave() -> None:
    tile, depth = 256, 8192
    full = time_ns(MI300X, 16 * tile, depth, 19 * tile)  # 304 tiles on 304 compute units
    more = time_ns(MI300X, 16 * tile, depth, 20 * tile)
    assert more / full > 1.08  # for 5% more output
    assert time_ns(MI300X, 16 * tile, depth, 18 * tile) > 0.9 * full


def test_few_tiles_of_a_long_inner_size_are_split() -> None:
    short, long = (time_ns(MI300X, 128, depth, 128) for depth in (1 << 12, 1 << 16))
    assert long < 8 * short  # 16 times the depth


def test_few_rows_take_as_long_as_the_weights_from_memory() -> None:
    weights = 8192 * 28672 * 2
    assert time_ns(MI300X, 16, 8192, 28672) == pytest.approx(weights / (5.325e12 * 0.664) * 1e9, rel=0.1)


def test_a_group_fills_the_waves_together() -> None:
    one = time_ns(MI300X, 256, 2048, 1408)
    assert time_ns(MI300X, 256, 2048, 1408, 8) < 3 * one
    grouped, plain = (
        gemm_rate(MI300X, rows, 2048, 1408, "bf16", count) for rows, count in ((512, 8), (4096, 1))
    )
    assert grouped
    assert plain
    assert grouped.per_s == pytest.approx(plain.per_s, rel=0.15)


def test_weights_gradients_read_their_operands_once() -> None:
    """Tiles of a long inner size walk along it together, whatever the size of the operands."""
    rate = gemm_rate(MI355X, 36864, 2048, 1408, "bf16", 8, "weight")
    assert rate
    assert rate.per_s > 0.8e15


def test_rows_of_odd_length_are_slower() -> None:
    even, odd = (time_ns(MI300X, 3136, 64, n, 96) for n in (3136, 3137))
    assert 1.2 < odd / even < 1.5


def test_a_device_without_the_numbers_has_no_model() -> None:
    gemm = GemmSizes(4096, 4096, 4096)
    assert gemm_ns(replace(MI300X, modeled=None), gemm, "bf16") is None
    assert gemm_ns(device("h200"), gemm, "bf16") is None
    assert gemm_ns(MI300X, gemm, "fp4") is None


@pytest.mark.parametrize(("use", "median", "within"), [("set", 0.06, 24), ("test", 0.105, 19)])
def test_published_times_of_mi355x(use: str, median: float, within: int) -> None:
    """24 times that set the numbers, and 24 that did not; a tuned kernel for each."""
    errors = np.array(
        [
            time_ns(MI355X, m, weights["k"], weights["n"]) / (1000 * us) - 1
            for weights in PUBLISHED["weights"]
            if weights["use"] == use
            for m, us in zip(PUBLISHED["rows"], weights["us"], strict=True)
        ]
    )
    assert len(errors) == 24
    assert np.median(np.abs(errors)) <= median
    assert (np.abs(errors) <= 0.25).sum() >= within

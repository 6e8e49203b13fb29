"""Rates between measured sizes by hand, and [measured] tables from file to device and back."""

from __future__ import annotations

from math import exp, log, sqrt
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tracelens.devices import (
    AttentionCurve,
    Bandwidth,
    GemmCurve,
    LaunchCost,
    Measured,
    device,
    device_toml,
    read_device,
)
from tracelens.devices.spec import interpolate
from tracelens.errors import TracelensError

SIZES, RATES = (16, 64, 256), (1e12, 4e12, 6e12)
GRID = tuple(
    GemmCurve("bf16", k, n, (16, 64), (rate, 2 * rate))
    for k, n, rate in ((512, 512, 1e12), (512, 2048, 2e12), (2048, 512, 4e12), (2048, 2048, 8e12))
)


def test_rates_are_interpolated_on_logarithmic_scales() -> None:
    assert [interpolate(size, SIZES, RATES) for size in SIZES] == pytest.approx(RATES)
    # Half way between 64 and 256.
    assert interpolate(128, SIZES, RATES) == pytest.approx(sqrt(4e12 * 6e12))
    assert interpolate(100, SIZES, RATES) == pytest.approx(
        exp(log(4e12) + log(100 / 64) / log(4) * log(6 / 4))
    )


def test_a_smaller_kernel_takes_as_long_as_the_smallest_and_a_larger_one_has_its_rate() -> None:
    assert interpolate(4, SIZES, RATES) == pytest.approx(1e12 / 4)
    assert interpolate(10**6, SIZES, RATES) == 6e12


def test_a_gemm_lies_in_the_grid_of_its_sizes() -> None:
    measured = Measured(gemms=GRID)
    assert measured.gemm_rate(64, 512, 2048, "bf16") == pytest.approx(4e12)
    # In the middle of all three: between 16 and 64 rows, k and n between 512 and 2048.
    middle = (1e12 * 2e12 * 4e12 * 8e12) ** 0.25 * sqrt(2)
    assert measured.gemm_rate(32, 1024, 1024, "bf16") == pytest.approx(middle)
    assert measured.gemm_rate(32, 1024, 1024, "fp16") is None
    assert measured.gemm_rate(32, 1024, 1024, "bf16", matrices=8) is None
    assert measured.best_gemm("bf16") == 16e12


def test_a_gemm_narrower_than_measured_takes_part_of_the_time_beyond_the_shortest() -> None:
    """The shortest of GRID: 16 x 512 x 512; of 64 rows and n = 2048, k = 128 is a fourth of the smallest."""
    measured = Measured(gemms=GRID)
    shortest_s = min(2 * c.rows[0] * c.k * c.n / c.flops_per_s[0] for c in GRID)
    least = measured.gemm_rate(64, 512, 2048, "bf16")
    assert least
    smallest_s = 2 * 64 * 512 * 2048 / least
    narrow = measured.gemm_rate(64, 128, 2048, "bf16")
    assert narrow
    assert 2 * 64 * 128 * 2048 / narrow == pytest.approx(shortest_s + (smallest_s - shortest_s) / 4)
    assert measured.gemm_rate(64, 128, 512, "bf16") < measured.gemm_rate(64, 512, 512, "bf16")  # type: ignore[operator]


def test_fewer_matrices_than_measured_are_not_a_smaller_gemm() -> None:
    curves = tuple(
        GemmCurve("bf16", 512, 512, (16, 64), (rate, rate), count) for count, rate in ((8, 1e12), (32, 4e12))
    )
    measured = Measured(gemms=curves)
    assert measured.gemm_rate(64, 512, 512, "bf16", 2) == pytest.approx(1e12)
    assert measured.gemm_rate(64, 512, 512, "bf16", 16) == pytest.approx(2e12)
    assert measured.gemm_rate(64, 512, 512, "bf16", 64) == pytest.approx(4e12)


def test_attention_has_the_rate_of_the_nearest_head() -> None:
    heads = tuple(
        AttentionCurve("bf16", q, 128, (512, 2048), (rate, 2 * rate), (rate / 2, rate))
        for q, rate in ((128, 1e12), (192, 3e12))
    )
    measured = Measured(attention=heads)
    assert measured.attention_rate(2048, 192, 128, "bf16") == pytest.approx(6e12)
    assert measured.attention_rate(1024, 64, 64, "bf16") == pytest.approx(1e12 * sqrt(2))
    assert measured.attention_rate(512, 192, 128, "bf16", backward=True) == pytest.approx(1.5e12)
    assert measured.attention_rate(512, 192, 128, "fp16") is None


def test_bandwidths_of_memory_are_of_one_rank() -> None:
    measured = Measured(
        bandwidths=(Bandwidth("all_reduce", (1024,), (5e10,), 8, 4), Bandwidth("triad", (1024,), (1e12,)))
    )
    assert measured.bandwidth("all_reduce", 2048) is None
    assert measured.bandwidth("triad", 512) == pytest.approx(5e11)


POINTS = st.lists(
    st.tuples(st.integers(1, 10**6), st.floats(1e9, 1e15)), min_size=1, max_size=8, unique_by=lambda p: p[0]
)


@given(POINTS, st.floats(0.5, 1e7))
def test_rates_lie_between_those_measured(points: list[tuple[int, float]], size: float) -> None:
    sizes, rates = zip(*sorted(points), strict=True)
    rate = interpolate(size, sizes, rates)
    assert 0 < rate <= max(rates) * (1 + 1e-9)
    if size >= sizes[0]:
        assert rate >= min(rates) * (1 - 1e-9)


@given(st.lists(st.floats(1e9, 1e15), min_size=2, max_size=6), st.integers(1, 4000), st.integers(1, 4000))
def test_rates_that_rise_with_size_rise_in_between(rates: list[float], size: int, other: int) -> None:
    rising, sizes = sorted(rates), [4 << (2 * number) for number in range(len(rates))]
    low, high = sorted((size, other))
    assert interpolate(low, sizes, rising) <= interpolate(high, sizes, rising) * (1 + 1e-9)


def everything() -> Measured:
    return Measured(
        gemms=(*GRID, GemmCurve("fp8", 512, 512, (16,), (1.5e12,), 8, "weight")),
        attention=(AttentionCurve("bf16", 192, 128, (512, 1024), (1e14, 2e14), (5e13, 1e14)),),
        bandwidths=(Bandwidth("triad", (1024,), (1e12,)), Bandwidth("all_to_all", (1024,), (3.5e10,), 8, 8)),
        launch=LaunchCost(kernel_ns=2500.5, forward_ns=9000.0),
        about={"date": "2026-11-23", "gpu": 'a "GPU"'},
    )


def test_a_device_comes_back_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    written = replace(device("h100"), measured=everything())
    path.write_text(device_toml(written), encoding="utf-8")
    back = read_device(path)
    assert back.measured == everything()
    assert back == written
    assert device_toml(back) == path.read_text(encoding="utf-8")


def test_a_device_without_measurements_has_no_such_table() -> None:
    assert "measured" not in device_toml(device("mi355x"))
    assert not device("mi355x").measured


HEAD = 'name = "x"\nhbm_bytes_per_s = 1e12\n[matrix]\nbf16 = 1e14\n'
GEMM = '[[measured.gemm]]\ndtype = "bf16"\nk = 512\nn = 512\nrows = [16, 64]\nflops_per_s = [1e12, 2e12]\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[measured]\ndate = 3\n", "measured.date must be text in quotes"),
        ("[measured]\ngemm = 3\n", r"write \[\[measured.gemm\]\] for each"),
        (GEMM.replace("bf16", "half"), "dtype must be one of fp64"),
        (GEMM.replace("k = 512", "k = 0"), "number 1: k must be a whole number of 1 or more"),
        (GEMM.replace("k = 512", "depth = 512"), "unknown key 'depth'"),
        (GEMM.replace("[16, 64]", "[64, 16]"), "rows must be whole numbers in ascending order"),
        (GEMM.replace("[16, 64]", "[16]"), "1 rows but 2 flops_per_s; list one rate for each size"),
        (GEMM.replace("1e12, ", "-1e12, "), "flops_per_s must be a list of positive numbers"),
        (GEMM + GEMM.replace("= 512", "= 64"), "each combination of k, n and matrices"),
        (GEMM + GEMM, "each combination of k, n and matrices"),
        (GEMM + 'kind = "input"\n', "kind must be one of output, weight"),
        ('[[measured.bandwidth]]\nname = "fast"\n', "name must be one of copy"),
        ("[measured]\nlaunch = 5\n", r"write \[measured.launch\]"),
        ("[measured.launch]\nkernel_us = 5\n", "unknown key in .measured.launch.: 'kernel_us'"),
        ("[measured.launch]\nkernel_ns = 0\n", "measured.launch.kernel_ns must be a positive number"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_said_in_a_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "x.toml"
    path.write_text(HEAD + text)
    with pytest.raises(TracelensError, match=message) as caught:
        read_device(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_file_is_a_device_wherever_a_name_is(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(device_toml(replace(device("h100"), name="mine", measured=everything())))
    assert device(str(path)) == read_device(path)
    with pytest.raises(TracelensError, match=r"nowhere\.toml: no such file"):
        device(str(tmp_path / "nowhere.toml"))

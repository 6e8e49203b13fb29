"""Achieved rates of devices: measured, from the curve of a measured one, or their peak."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.devices.test_bundled import DEVICES
from tracelens.devices import (
    DATA_SHEET,
    PEAK,
    Device,
    GemmCurve,
    GemmKind,
    LaunchCost,
    Measured,
    Rate,
    attention_rate,
    device,
    gemm_rate,
    launch_cost,
    memory_rate,
    typical_memory_rate,
)
from tracelens.devices.efficiency import MEASURED, MODELED, REFERENCE

H200, MI300X, MI355X, B200 = (device(name) for name in ("h200", "mi300x", "mi355x", "b200"))


def test_a_measured_device_has_its_own_rates() -> None:
    curve = next(
        c for c in H200.measured.gemms if (c.dtype, c.k, c.n, c.kind) == ("bf16", 2048, 2048, "output")
    )
    rate = gemm_rate(H200, curve.rows[3], 2048, 2048, "bf16")
    assert rate == (pytest.approx(curve.flops_per_s[3]), MEASURED)
    assert memory_rate(H200, 1e9).source == MEASURED


def test_another_device_reaches_the_share_at_as_many_tiles_per_unit() -> None:
    # 148 multiprocessors: 148 rows fill them as 132 rows fill those of H200.
    equal = gemm_rate(H200, 4096 * H200.units / B200.units, 2048, 2048, "bf16")
    rate = gemm_rate(B200, 4096, 2048, 2048, "bf16")
    assert equal
    assert rate
    assert rate.per_s / 2250e12 == pytest.approx(equal.per_s / 989.4e12)
    assert rate.source == f"modeled on {REFERENCE}"


def test_a_published_rate_is_the_ceiling() -> None:
    mine = replace(MI300X, modeled=None)
    rate = gemm_rate(mine, 16384, 8192, 8192, "bf16")
    assert rate
    assert 0.7 * 708e12 < rate.per_s <= 708e12
    assert rate.source == f"modeled on {REFERENCE}, of the published rate"


@pytest.mark.parametrize(
    "item", [item for item in DEVICES if item.vendor == "AMD"], ids=lambda item: item.name
)
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32", "fp8"])
def test_no_gemm_of_an_amd_gpu_is_modeled_on_another_one(item: Device, dtype: str) -> None:
    for kind, matrices in (("output", 1), ("weight", 1), ("output", 8), ("weight", 8)):
        rate = gemm_rate(item, 4096, 2048, 1408, dtype, matrices, kind)
        assert rate is None or rate.source.startswith("modeled (CDNA tiles), ")


def test_a_rate_says_what_it_is_known_from() -> None:
    sizes = (4096, 4096, 4096, "bf16")
    bases = [rate.basis for item in (H200, MI355X, B200) if (rate := gemm_rate(item, *sizes))]
    assert bases == [MEASURED, MODELED, MODELED]
    assert Rate(1.0, PEAK).basis == DATA_SHEET
    assert memory_rate(MI355X, 1 << 30).basis == MODELED


def test_kernels_of_a_framework_reach_a_share_of_the_modeled_bandwidth() -> None:
    best, typical = memory_rate(MI300X, 1 << 28), typical_memory_rate(MI300X, 1 << 28)
    assert typical.per_s == pytest.approx(0.64 * best.per_s)
    assert typical.source == f"64% of modeled on {REFERENCE}, as in traces of AMD GPUs"
    assert typical_memory_rate(H200, 1 << 28) == memory_rate(H200, 1 << 28)
    assert typical_memory_rate(B200, 1 << 28) == memory_rate(B200, 1 << 28)


def test_weight_gradients_and_grouped_gemms_fall_back_to_plain_ones() -> None:
    curves = tuple(GemmCurve("bf16", k, n, (64, 4096), (1e13, 5e14)) for k in (64, 4096) for n in (64, 4096))
    mine = replace(H200, measured=Measured(gemms=curves))
    plain = gemm_rate(mine, 512, 64, 64, "bf16")
    assert gemm_rate(mine, 64, 64, 64, "bf16", matrices=8) == plain
    # The weight gradient of 64 inputs sums over the rows: a GEMM of 64 rows, 512 deep.
    assert gemm_rate(mine, 512, 64, 64, "bf16", kind="weight") == gemm_rate(mine, 64, 512, 64, "bf16")


def test_a_type_that_was_not_measured_has_the_share_of_bf16() -> None:
    fp6, bf16 = (gemm_rate(B200, 8192, 4096, 4096, dtype) for dtype in ("fp6", "bf16"))
    assert fp6
    assert bf16
    assert fp6.per_s / B200.matrix["fp6"] == pytest.approx(bf16.per_s / B200.matrix["bf16"])
    assert gemm_rate(MI300X, 8192, 4096, 4096, "fp6") is None
    assert gemm_rate(H200, 8192, 4096, 4096, "fp8e4m3") == gemm_rate(H200, 8192, 4096, 4096, "fp8")


def test_memory_takes_as_long_for_its_share_as_on_the_measured_device() -> None:
    for size in (4 << 20, 1 << 30):
        reference = memory_rate(H200, size * 4.8 / 8)
        assert memory_rate(MI355X, size).per_s / 8e12 == pytest.approx(reference.per_s / 4.8e12)
    assert memory_rate(H200, 1 << 20).per_s < memory_rate(H200, 1 << 30).per_s < 4.8e12


def test_launches_cost_what_they_did_on_the_host_that_was_measured() -> None:
    mine = replace(MI355X, measured=Measured(launch=LaunchCost(forward_ns=5000.0, backward_ns=8000.0)))
    assert launch_cost(mine) == (mine.measured.launch, MEASURED)
    assert launch_cost(MI355X) == (H200.measured.launch, f"measured on a host of {REFERENCE}")


@given(
    st.sampled_from(DEVICES), st.sampled_from(["bf16", "fp16", "fp8", "fp32", "tf32"]), st.floats(1, 1e6),
    st.integers(1, 40_000), st.integers(1, 200_000), st.sampled_from([1, 2, 8, 64]),
    st.sampled_from(["output", "weight"]),
)  # fmt: skip
@settings(deadline=None)
def test_no_gemm_exceeds_the_peak(
    item: Device, dtype: str, m: float, k: int, n: int, matrices: int, kind: GemmKind
) -> None:
    peak, rate = item.peak("matrix", dtype), gemm_rate(item, m, k, n, dtype, matrices, kind)
    if peak is None:
        assert rate is None
    else:
        assert rate is not None
        assert 0 < rate.per_s <= (item.max_achievable(dtype) or peak)


@given(st.sampled_from(DEVICES), st.integers(1, 10**6), st.booleans(), st.floats(1, 1e12))
@settings(deadline=None)
def test_no_attention_and_no_copy_exceeds_the_peak(
    item: Device, seq: int, backward: bool, size: float
) -> None:
    rate = attention_rate(item, seq, 192, 128, "bf16", backward)
    assert rate is not None
    peak = item.peak("matrix", "bf16")
    assert peak
    assert 0 < rate.per_s <= peak
    assert 0 < memory_rate(item, size).per_s <= item.hbm_bytes_per_s

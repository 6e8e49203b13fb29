"""Which figure of a device holds for which element type."""

import pytest

from tests.devices.test_bundled import each_device
from tracelens.devices import Device, device
from tracelens.devices.spec import DTYPES
from tracelens.dtypes import BITS


@pytest.mark.parametrize(
    ("name", "dtype", "tera"),
    [
        ("mi300x", "bf16", 1307.4),
        ("mi300x", "fp8e4m3", 2614.9),
        ("mi300x", "fp8e5m2", 2614.9),
        ("mi300x", "i8", 2614.9),
        ("mi300x", "u8", 2614.9),
        ("mi300x", "tf32", 653.7),
        ("mi300x", "fp32", 163.4),
        ("mi300x", "c64", 163.4),
        ("mi300x", "c128", 163.4),  # FP64 matrix
        ("mi300x", "i32", 163.4),  # on the vector units, counted as FP32
        ("mi300x", "fp6", None),
        ("mi300x", "fp4x2", None),
        ("mi355x", "fp6", 10066.3),
        ("mi355x", "fp4", 10066.3),
        ("mi355x", "fp4x2", 10066.3),
        ("mi355x", "tf32", 157.3),  # no TF32 units: FP32
        ("h100", "fp32", 67),  # no FP32 matrix unit: vector
        ("h100", "tf32", 494.7),
        ("h100", "fp64", 67),
        ("h100", "fp4", None),
        ("b200", "fp4x2", 9000),
        ("a100", "fp8", None),
        ("a100", "i8", 624),
        ("v100", "fp16", 125),
        ("v100", "bf16", 15.7),  # no unit takes it: computed in FP32
        ("v100", "tf32", 15.7),
        ("v100", "fp64", 7.8),
        ("v100", "fp8e4m3", None),
        ("v100", "i8", None),
        ("mi250x", "fp8e5m2", None),
    ],
)
def test_matrix_peaks(name: str, dtype: str, tera: float | None) -> None:
    assert device(name).peak("matrix", dtype) == (None if tera is None else pytest.approx(tera * 1e12))


@pytest.mark.parametrize(
    ("name", "dtype", "tera"),
    [
        ("mi300x", "fp32", 163.4),
        ("mi300x", "fp64", 81.7),
        ("mi300x", "bf16", 163.4),  # computed in FP32
        ("mi300x", "fp16", 163.4),
        ("mi300x", "fp8e4m3", 163.4),
        ("mi300x", "bool", 163.4),
        ("mi300x", "i64", 163.4),
        ("mi300x", "fp4", None),
        ("mi355x", "fp4x2", 157.3),
        ("h100", "bf16", 133.8),  # packed pairs
        ("h100", "i32", 33.5),
        ("h100", "u32", 33.5),
        ("h100", "i64", 33.5),
        ("h100", "bool", 33.5),
        ("h100", "tf32", 67),
        ("a100", "fp16", 78),
        ("a100", "bf16", 39),
        ("v100", "fp16", 31.4),
        ("v100", "bf16", 15.7),
        ("v100", "fp8e4m3", None),
        ("mi250x", "fp8", None),
    ],
)
def test_vector_peaks(name: str, dtype: str, tera: float | None) -> None:
    assert device(name).peak("vector", dtype) == (None if tera is None else pytest.approx(tera * 1e12))


@each_device
@pytest.mark.parametrize("dtype", sorted(BITS))
def test_every_element_type_of_a_trace_has_an_answer(item: Device, dtype: str) -> None:
    narrow = dtype.startswith(("fp8", "fp6", "fp4")) and dtype != "fp64"
    own = dtype[:3] in item.matrix
    vector, matrix = item.peak("vector", dtype), item.peak("matrix", dtype)
    if narrow:
        assert (matrix is not None, vector is not None) == (own, own)
    else:
        assert vector
        assert matrix or (dtype in ("i8", "u8") and "i8" not in item.matrix)
    assert matrix is None or vector is None or matrix >= vector


@each_device
def test_published_rates_come_back_as_they_are(item: Device) -> None:
    assert {dtype: item.peak("matrix", dtype) for dtype in item.matrix} == item.matrix
    assert {dtype: item.peak("vector", dtype) for dtype in item.vector} == item.vector
    assert {dtype: item.max_achievable(dtype) for dtype in item.maf} == item.maf


@pytest.mark.parametrize("dtype", ["", "fp3", "str", "FP32"])
def test_what_is_no_element_type_has_no_peak(dtype: str) -> None:
    item = device("mi300x")
    assert item.peak("matrix", dtype) is None
    assert item.peak("vector", dtype) is None
    assert item.max_achievable(dtype) is None


def test_max_achievable() -> None:
    item = device("mi300x")
    assert item.max_achievable("bf16") == 708e12
    assert item.max_achievable("fp8e4m3") == item.max_achievable("fp8e5m2") == 1273e12
    assert item.max_achievable("fp32") is None
    assert all(device("mi355x").max_achievable(dtype) is None for dtype in DTYPES)

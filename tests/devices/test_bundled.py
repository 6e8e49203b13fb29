"""The bundled device files: closed forms of their numbers, a source for each, names that mean one device."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from msgspec.structs import asdict, replace

import tracelens.devices.catalogue
from tracelens.devices import SECONDARY, Device, device, devices
from tracelens.devices.catalogue import words
from tracelens.devices.files import numbers
from tracelens.devices.spec import DTYPES, Measured

FILES = sorted(Path(tracelens.devices.catalogue.__file__).parent.glob("*.toml"))
DEVICES = devices()
each_device = pytest.mark.parametrize("item", DEVICES, ids=lambda item: item.name)


def test_every_file_is_a_device_of_that_name() -> None:
    assert sorted(item.name for item in DEVICES) == sorted(file.stem for file in FILES)


def test_order_is_by_vendor_and_then_by_memory_speed() -> None:
    assert [item.name for item in DEVICES] == [
        "mi250x", "mi300x", "mi325x", "mi350x", "mi355x",
        "v100", "v100-32gb", "a100-40gb", "a100", "h100", "h20", "h200", "b200", "gb200", "b300",
    ]  # fmt: skip


@each_device
def test_every_number_has_a_source(item: Device) -> None:
    assert set(item.sources) == set(numbers(item))
    assert all("https://" in text for text in item.sources.values())


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_source_is_complete_and_used(file: Path) -> None:
    values = tomllib.loads(file.read_text())
    assert all({"title", "url", "date"} <= set(entry) for entry in values["sources"].values())
    used = {
        key
        for entry in values["source"].values()
        for key in (entry.values() if isinstance(entry, dict) else [entry])
    }
    assert used == set(values["sources"])


def test_what_is_not_the_vendors_word_says_so() -> None:
    secondary = {item.name for item in DEVICES if any(SECONDARY in text for text in item.sources.values())}
    assert secondary == {"h100", "h20", "h200", "b200", "gb200", "b300"}


@pytest.mark.parametrize("name", ["mi300x", "mi325x"])
def test_cdna3_peaks_are_units_times_clock_times_flops(name: str) -> None:
    per_clock = 304 * 2.1e9  # 8 XCD x 38 CU at 2.1 GHz
    matrix = {"fp64": 256, "fp32": 256, "tf32": 1024, "bf16": 2048, "fp16": 2048, "fp8": 4096, "i8": 4096}
    item = device(name)
    assert item.units == 304
    assert item.matrix == pytest.approx({key: per_clock * flops for key, flops in matrix.items()}, rel=2e-4)
    assert item.vector == pytest.approx({"fp64": per_clock * 128, "fp32": per_clock * 256}, rel=6e-4)


@pytest.mark.parametrize(("name", "clock"), [("mi350x", 2.2e9), ("mi355x", 2.4e9)])
def test_cdna4_peaks_are_units_times_clock_times_flops(name: str, clock: float) -> None:
    per_clock = 256 * clock  # 8 XCD x 32 CU
    matrix = {
        "fp64": 128, "fp32": 256, "bf16": 4096, "fp16": 4096, "fp8": 8192, "i8": 8192,
        "fp6": 16384, "fp4": 16384,
    }  # fmt: skip
    item = device(name)
    assert item.units == 256
    assert item.matrix == pytest.approx({key: per_clock * flops for key, flops in matrix.items()}, rel=6e-4)
    vector = {"fp64": per_clock * 128, "fp32": per_clock * 256, "fp16": per_clock * 256}
    assert item.vector == pytest.approx(vector, rel=6e-4)


def test_mi250x_is_one_of_the_two_dies() -> None:
    per_clock = 110 * 1.7e9
    item = device("mi250x")
    assert item.matrix["bf16"] == pytest.approx(per_clock * 1024, rel=2e-4)
    assert item.matrix["fp64"] == pytest.approx(per_clock * 256, rel=2e-4)
    assert item.vector["fp64"] == pytest.approx(per_clock * 128, rel=2e-4)
    assert item.hbm_bytes_per_s == 4096 / 8 * 3.2e9  # half of 8192 bit at 3.2 Gb/s
    assert "one GCD" in item.title


@pytest.mark.parametrize(("name", "sms", "clock"), [("v100", 80, 1.53e9), ("a100", 108, 1.41e9)])
def test_nvidia_fp32_is_64_fused_multiply_adds_an_sm(name: str, sms: int, clock: float) -> None:
    assert device(name).vector["fp32"] == pytest.approx(sms * clock * 128, rel=5e-3)


def test_nvidia_matrix_peaks_are_dense() -> None:
    # Data sheets lead with 2:4 sparsity, twice as much.
    assert [device(name).matrix["bf16"] for name in ("a100", "h100", "h200", "b200")] == [
        312e12, 989.4e12, 989.4e12, 2250e12,
    ]  # fmt: skip


def test_peaks_with_sparsity_are_apart_and_twice_the_dense_ones() -> None:
    sparse = {item.name: item for item in DEVICES if item.sparse}
    assert sorted(sparse) == ["a100", "a100-40gb", "h100", "h200", "mi300x"]
    for item in sparse.values():
        assert {*item.sparse} <= {*item.matrix}
        for dtype, rate in item.sparse.items():
            assert rate == pytest.approx(2 * item.matrix[dtype], rel=1e-3)
            assert item.peak("matrix", dtype) == item.matrix[dtype]


def test_memory() -> None:
    found = {item.name: (item.hbm_bytes, item.hbm_bytes_per_s) for item in DEVICES}
    assert found == {
        "mi250x": (64_000_000_000, 1.6384e12),
        "mi300x": (192_000_000_000, 5.325e12),
        "mi325x": (256_000_000_000, 6e12),
        "mi350x": (288_000_000_000, 8e12),
        "mi355x": (288_000_000_000, 8e12),
        "v100": (16_000_000_000, 0.9e12),
        "v100-32gb": (32_000_000_000, 0.9e12),
        "a100-40gb": (40_000_000_000, 1.555e12),
        "a100": (80_000_000_000, 2.039e12),
        "h100": (80_000_000_000, 3.35e12),
        "h20": (96_000_000_000, 4e12),
        "h200": (141_000_000_000, 4.8e12),
        "b200": (180_000_000_000, 7.7e12),
        "gb200": (186_000_000_000, 8e12),
        "b300": (288_000_000_000, 8e12),
    }
    # 8192 bit at 5.2 Gb/s; 7680 bit at 2 x 3.996 Gb/s.
    assert device("mi300x").hbm_bytes_per_s == pytest.approx(8192 / 8 * 5.2e9, rel=1e-4)
    assert device("b200").hbm_bytes_per_s == pytest.approx(7680 / 8 * 2 * 3.996e9, rel=0.01)


def test_links_are_one_direction() -> None:
    assert device("mi300x").gpu_link_bytes_per_s == 7 * 128e9 / 2
    assert device("mi355x").gpu_link_bytes_per_s == pytest.approx(7 * 153.6e9 / 2)
    assert device("h100").gpu_link_bytes_per_s == 900e9 / 2
    assert device("b200").gpu_link_bytes_per_s == 1800e9 / 2
    assert device("mi300x").host_link_bytes_per_s == 16 * 32e9 / 8  # PCIe 5 x16: 16 lanes of 32 GT/s


def test_max_achievable_is_there_only_where_published() -> None:
    published = {item.name: dict(item.maf) for item in DEVICES if item.maf}
    assert published == {
        "mi300x": {"fp16": 654e12, "bf16": 708e12, "fp8": 1273e12},
        "mi325x": {"fp16": 794e12, "bf16": 843e12, "fp8": 1519e12},
    }


@each_device
def test_numbers_are_of_a_sensible_size(item: Device) -> None:
    assert isinstance(item.units, int)
    assert isinstance(item.hbm_bytes, int)
    assert isinstance(item.cache_bytes, int)
    assert item.cache_bytes == 0 or 1 << 20 < item.cache_bytes < 1 << 30  # 0: not published
    for key, value in numbers(item).items():
        if key.startswith(("matrix", "sparse", "vector", "maf")):
            assert 1e12 <= value < 20e15, key
    for dtype, rate in item.maf.items():
        assert 0.4 < rate / item.matrix[dtype] < 1


@each_device
def test_matrix_units_are_no_slower_for_smaller_types(item: Device) -> None:
    order = [dtype for dtype in ("fp64", "fp32", "tf32", "bf16", "fp8", "fp6", "fp4") if dtype in item.matrix]
    rates = [item.matrix[dtype] for dtype in order]
    assert rates == sorted(rates)


@each_device
def test_element_types_are_known(item: Device) -> None:
    assert {*item.matrix, *item.sparse, *item.vector, *item.maf} <= set(DTYPES)


def test_a_device_is_plain_data() -> None:
    item = device("mi300x")
    assert len({item, device("MI300X")}) == 1
    assert asdict(item)["matrix"]["bf16"] == 1307.4e12
    assert Device(**{name: getattr(item, name) for name in asdict(item)}) == item
    with pytest.raises(AttributeError):
        item.units = 1  # type: ignore[misc]


def test_aliases_are_of_one_device_only() -> None:
    spelt = [words(name) for item in DEVICES for name in {item.name, *map(str.lower, item.aliases)}]
    assert len(spelt) == len(set(spelt))


def test_the_list_of_devices_is_ones_own() -> None:
    devices().clear()
    assert len(devices()) == len(FILES)


def test_importing_reads_no_file() -> None:
    code = """
import sys
DATA = (".toml", ".json")
sys.addaudithook(lambda event, args: event == "open" and str(args[0]).endswith(DATA) and print(args))
import tracelens.devices.catalogue
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == ""


def test_a_rated_device_lacks_sources_and_what_was_measured() -> None:
    for rated, whole in zip(devices(rated=True), devices(), strict=True):
        assert rated == replace(whole, measured=Measured(), sources={})

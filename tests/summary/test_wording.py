"""Numbers and names in sentences."""

from __future__ import annotations

import pytest

from tracelens.rendering.summary import (
    about,
    hardware,
    percent,
    short_device,
    short_reason,
)


@pytest.mark.parametrize(
    ("fraction", "text"),
    [
        (0, "0%"),
        (0.0004, "<0.1%"),
        (0.064, "6.4%"),
        (0.0996, "10%"),
        (0.377, "38%"),
        (0.9997, ">99%"),
        (1, "100%"),
    ],
)
def test_percent(fraction: float, text: str) -> None:
    assert percent(fraction) == text


@pytest.mark.parametrize(
    ("ns", "text"), [(42.04e6, "42 ms"), (77.8e6, "77.8 ms"), (131.2e6, "131 ms"), (2e9, "2 s")]
)
def test_projected_times_have_no_zeros_behind_the_point(ns: float, text: str) -> None:
    assert about(ns) == text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("AMD Instinct MI300X VF", "MI300X"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("NVIDIA L40S", "L40S"),
        ("AMD Instinct MI250X/MI250", "MI250X/MI250"),
        ("AMD Radeon Graphics", "Radeon Graphics"),
        ("", ""),
    ],
)
def test_devices_are_called_by_their_chip(name: str, text: str) -> None:
    assert short_device(name) == text


@pytest.mark.parametrize(
    ("devices", "ranks", "text"),
    [
        (["NVIDIA H200"], 1, "H200"),
        (["NVIDIA H200"], 1024, "1,024 x H200"),
        (["NVIDIA H200", "NVIDIA H100"], 8, "8 GPUs (H100, H200)"),
        ([""], 1, "1 GPU"),
        ([], 4, "4 GPUs"),
    ],
)
def test_hardware(devices: list[str], ranks: int, text: str) -> None:
    assert hardware(devices, ranks) == text


def test_reasons_are_cut_to_the_width_of_a_tile() -> None:
    assert short_reason("no peaks known; pass --device") == "no peaks known"
    assert len(short_reason("x" * 100)) == 72

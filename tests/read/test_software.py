"""Programs and versions that a trace's header names."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import draw
from tracelens.devices import match
from tracelens.read.header import SERVING, TRAINING, software_of


@pytest.mark.parametrize(
    ("header", "software"),
    [
        ({}, {}),
        ({"cuda_runtime_version": 13000}, {"cuda": "13.0"}),
        ({"cuda_runtime_version": 12080, "cuda_driver_version": 13000}, {"cuda": "12.8"}),
        ({"hip_runtime_version": 60443483}, {"hip": "6.4"}),
        ({"hip_runtime_version": "70253211"}, {"hip": "7.2"}),
        ({"cuda_runtime_version": -1, "hip_runtime_version": None}, {}),
        ({"cuda_runtime_version": [1], "hip_runtime_version": 1e300}, {}),
        ({"distributedInfo": {"nccl_version": "2.27.7"}}, {"nccl": "2.27.7"}),
        ({"distributedInfo": {"nccl_version": 22707}}, {}),
        ({"distributedInfo": "none", "tracelens": "none"}, {}),
        ({"tracelens": {"version": "0.1.0"}}, {"tracelens": "0.1.0"}),
        ({"tracelens": {"version": 3, "config": {"model": {}}}}, {"tracelens": ""}),
    ],
)
def test_versions(header: dict[str, Any], software: dict[str, str]) -> None:
    assert software_of(header) == software


def test_the_bundled_programs_are_told_by_their_configuration() -> None:
    config: dict[str, Any] = {"model": {}, "toggles": {}}
    assert software_of({"tracelens": {"version": "1", "config": config}})[TRAINING] == "1"
    config["serving"] = {}
    serving = software_of({"tracelens": {"version": "1", "config": config}})
    assert serving[SERVING] == "1"
    assert TRAINING not in serving


@pytest.mark.parametrize(
    ("name", "units", "version", "memory", "device"),
    [
        ("AMD Instinct MI300X VF", 304, (9, 4), 205_822_885_888, "mi300x"),
        ("", 304, (9, 4), 206_141_652_992, "mi300x"),
        ("AMD Radeon Graphics", 304, (9, 4), 206_141_652_992, "mi300x"),
        ("", 256, (9, 5), 309_220_868_096, "mi355x"),
        ("AMD Radeon Graphics", 104, (9, 0), 68_702_699_520, None),  # a die of an MI250, not of an MI250X
        ("NVIDIA Something", 304, (9, 4), 206_141_652_992, None),  # a name is a name
    ],
)
def test_a_gpu_without_a_name_is_known_by_its_properties(
    name: str, units: int, version: tuple[int, int], memory: int, device: str | None
) -> None:
    properties = {
        "id": 0, "name": name, "numSms": units, "computeMajor": version[0], "computeMinor": version[1],
        "totalGlobalMem": memory,
    }  # fmt: skip
    trace = draw("s7 k | ==", deviceProperties=[properties])
    found = match(trace.meta.devices[0])
    assert (found.name if found else None) == device

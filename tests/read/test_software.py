"""Programs and versions that a trace's header names."""

from __future__ import annotations

from typing import Any

import pytest

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

"""Programs and versions that the header of a trace names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tracelens.read.json import integer

TRAINING, SERVING = "tracelens workload run", "tracelens workload serve"
"""The bundled programs, as TraceMeta.software names them."""

_CUDA, _HIP = "cuda_runtime_version", "hip_runtime_version"


def software_of(header: Mapping[str, Any]) -> dict[str, str]:
    """Program or library to version: runtime, NCCL, and the recorder and workload of tracelens.

    CUDA writes 13000 for 13.0, HIP 60443483 for 6.4 (and a build number).
    """
    versions: dict[str, str] = {}
    if (cuda := integer(header.get(_CUDA))) > 0:
        versions["cuda"] = f"{cuda // 1000}.{cuda % 1000 // 10}"
    if (hip := integer(header.get(_HIP))) > 0:
        versions["hip"] = f"{hip // 10_000_000}.{hip // 100_000 % 100}"
    info, recorder = header.get("distributedInfo"), header.get("tracelens")
    if isinstance(info, dict) and isinstance(nccl := info.get("nccl_version"), str):
        versions["nccl"] = nccl
    if isinstance(recorder, dict):
        version = recorder.get("version")
        versions["tracelens"] = version if isinstance(version, str) else ""
        if isinstance(config := recorder.get("config"), dict) and {"model", "toggles"} <= set(config):
            versions[SERVING if "serving" in config else TRAINING] = versions["tracelens"]
    return versions

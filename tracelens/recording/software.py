"""What a recording runs on: the device, the versions, and what this torch can record."""

from __future__ import annotations

import platform
import warnings
from typing import Any

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, supported_activities


def device_name(device: Any) -> str:
    """Name of a torch.device: the accelerator's, or the processor's architecture."""
    if device.type != "cuda":
        return f"cpu ({platform.machine()})"
    name: str = torch.cuda.get_device_name(device)
    return name


def this_device() -> dict[str, str | int]:
    """Type, name and count of the devices that this process sees; NVIDIA's and AMD's are "cuda" to torch."""
    count: int = torch.cuda.device_count() if torch.cuda.is_available() else 0
    device = torch.device("cuda", torch.cuda.current_device()) if count else torch.device("cpu")
    return {"type": str(device.type), "name": device_name(device), "count": count}


def software_versions() -> dict[str, str]:
    """Versions of Python, torch and the runtime that torch was built for."""
    versions = {"python": platform.python_version(), "torch": str(torch.__version__)}
    for name in ("cuda", "hip"):
        version = getattr(torch.version, name, None)
        if version:
            versions[name] = str(version)
    return versions


def has_option(name: str) -> bool:
    """Whether this torch's experimental profiler options include one of this name."""
    # The class is native and has no signature to ask; its docstring is the signature.
    return f"{name}:" in (_ExperimentalConfig.__init__.__doc__ or "")


def profiler_options(stack: bool, memory: bool = False) -> dict[str, Any]:
    """Arguments of torch's profiler: shapes, and as asked for Python frames with modules, and allocations."""
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available() and ProfilerActivity.CUDA in supported_activities():
        activities.append(ProfilerActivity.CUDA)
    # What torch calls experimental, where this torch has it: garbage collections, which it records only with
    # Python frames, and threads that were started before the profiler and not by autograd. Recording those
    # loses the events of `memory`, which the user chose and so goes first.
    options = {"record_python_gc_info": stack, "profile_all_threads": not memory}
    experimental = {name: True for name, on in options.items() if on and has_option(name)}
    # Version 2.11 warns of what several cycles would do, and here is but one. With acc_events it would not,
    # but turn all events into Python objects at the end, which takes longer than the recorded steps.
    warnings.filterwarnings("ignore", message="Warning: Profiler clears events at the end of each cycle")
    return {
        "activities": activities,
        "record_shapes": True,
        "profile_memory": memory,
        "with_stack": stack,
        "with_modules": stack,
        "experimental_config": _ExperimentalConfig(**experimental),
    }

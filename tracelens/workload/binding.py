"""A rank's process on the cores that are near its GPU."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from tracelens.errors import TracelensError

SYSTEM = Path("/sys")


def bind(local_rank: int, device: torch.device) -> list[int]:
    """Bind this process to the cores of one NUMA node: the GPU's, or round-robin by rank without one.

    Raises:
        TracelensError: the machine does not report its nodes, or this process may not use any of the cores.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise TracelensError("numa=bind needs Linux")
    path = _gpu_cores(device) if device.type == "cuda" else _node_cores(local_rank)
    allowed = sorted(parse_cores(_text(path)) & os.sched_getaffinity(0))
    if not allowed:
        raise TracelensError(f"numa=bind: this process may use none of the cores listed in {path}")
    os.sched_setaffinity(0, allowed)
    return allowed


def _gpu_cores(device: torch.device) -> Path:
    properties = torch.cuda.get_device_properties(device)
    domain, bus = getattr(properties, "pci_domain_id", 0), getattr(properties, "pci_bus_id", None)
    if bus is None:
        raise TracelensError(f"numa=bind: torch {torch.__version__} does not report a GPU's PCI address")
    address = f"{domain:04x}:{bus:02x}:{properties.pci_device_id:02x}.0"
    return SYSTEM / "bus" / "pci" / "devices" / address / "local_cpulist"


def nodes() -> list[Path]:
    """Folders of this machine's NUMA nodes, by number."""
    folders = (SYSTEM / "devices" / "system" / "node").glob("node[0-9]*")
    return sorted(folders, key=lambda node: int(node.name[4:]))


def _node_cores(local_rank: int) -> Path:
    folders = nodes()
    if not folders:
        raise TracelensError("numa=bind: this machine reports no NUMA nodes")
    return folders[local_rank % len(folders)] / "cpulist"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError as error:
        raise TracelensError(f"numa=bind: {path} cannot be read ({error.strerror})") from None


def parse_cores(text: str) -> set[int]:
    """Numbers in a list such as "0-3,8"."""
    cores: set[int] = set()
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            cores |= set(range(int(first), int(last or first) + 1))
    return cores

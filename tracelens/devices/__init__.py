"""Devices: what a GPU can do at most, and what was measured on it, one TOML file each."""

from tracelens.devices.catalogue import device, devices, match
from tracelens.devices.efficiency import (
    MEASURED,
    Rate,
    attention_rate,
    gemm_rate,
    launch_cost,
    memory_rate,
    typical_memory_rate,
)
from tracelens.devices.files import SECONDARY, device_toml, read_device
from tracelens.devices.spec import (
    AttentionCurve,
    Bandwidth,
    Device,
    GemmCurve,
    GemmKind,
    LaunchCost,
    Measured,
)

__all__ = [
    "MEASURED",
    "SECONDARY",
    "AttentionCurve",
    "Bandwidth",
    "Device",
    "GemmCurve",
    "GemmKind",
    "LaunchCost",
    "Measured",
    "Rate",
    "attention_rate",
    "device",
    "device_toml",
    "devices",
    "gemm_rate",
    "launch_cost",
    "match",
    "memory_rate",
    "read_device",
    "typical_memory_rate",
]

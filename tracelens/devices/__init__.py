"""Devices: what a GPU can do at most, and what was measured on it, one TOML file each."""

from tracelens.devices.catalogue import device, devices, match
from tracelens.devices.efficiency import Rate, attention_rate, gemm_rate, launch_cost, memory_rate
from tracelens.devices.measured import (
    AttentionCurve,
    Bandwidth,
    GemmCurve,
    GemmKind,
    LaunchCost,
    Measured,
)
from tracelens.devices.read import SECONDARY, read_device
from tracelens.devices.spec import Device
from tracelens.devices.write import device_toml

__all__ = [
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
]

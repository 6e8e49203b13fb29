"""Devices: what a GPU can do at most, and what was measured on it, one TOML file each."""

from typing import TYPE_CHECKING

from tracelens.devices.catalogue import device, devices, match
from tracelens.devices.efficiency import (
    DATA_SHEET,
    MEASURED,
    PEAK,
    MessageTime,
    Rate,
    attention_rate,
    bus_factor,
    gemm_rate,
    launch_cost,
    memory_rate,
    message_seconds,
    typical_memory_rate,
)
from tracelens.devices.files import SECONDARY, device_toml, read_device
from tracelens.devices.spec import (
    COLLECTIVES,
    AttentionCurve,
    Bandwidth,
    Device,
    GemmCurve,
    GemmKind,
    LaunchCost,
    Measured,
    measured_rates,
)
from tracelens.lazy import lazy

if TYPE_CHECKING:
    from tracelens.devices.tiles import GemmSizes, gemm_ns

__all__ = [
    "COLLECTIVES",
    "DATA_SHEET",
    "MEASURED",
    "PEAK",
    "SECONDARY",
    "AttentionCurve",
    "Bandwidth",
    "Device",
    "GemmCurve",
    "GemmKind",
    "GemmSizes",
    "LaunchCost",
    "Measured",
    "MessageTime",
    "Rate",
    "attention_rate",
    "bus_factor",
    "device",
    "device_toml",
    "devices",
    "gemm_ns",
    "gemm_rate",
    "launch_cost",
    "match",
    "measured_rates",
    "memory_rate",
    "message_seconds",
    "read_device",
    "typical_memory_rate",
]

# Few runs are of a GPU whose GEMMs are modeled.
__getattr__, __dir__ = lazy(__name__, {"devices.tiles": "GemmSizes gemm_ns"})

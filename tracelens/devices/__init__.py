"""Devices: what a GPU can do at most, one TOML file each."""

from tracelens.devices.catalogue import device, devices, match
from tracelens.devices.read import SECONDARY, read_device
from tracelens.devices.spec import Device

__all__ = ["SECONDARY", "Device", "device", "devices", "match", "read_device"]

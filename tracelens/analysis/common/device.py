"""Which device's figures hold for a trace."""

from __future__ import annotations

from tracelens.devices import Device, match, read_device
from tracelens.devices import device as device_named
from tracelens.errors import TracelensError
from tracelens.trace import Trace


def choose_device(name: str | None, file: str | None) -> Device | None:
    """The device of the options `device` and `device_file`, None where neither is given.

    Raises:
        TracelensError: both are given, no such device, or the file is no device file.
    """
    if name and file:
        raise TracelensError("--device and --device-file both name a device; pass only one")
    if file:
        return read_device(file)
    return device_named(name) if name else None


def own_device(trace: Trace) -> Device | None:
    """The device that did the work; None for several, one that is not known, or the host."""
    if trace.meta.cpu_only:
        return None
    devices = {match(name) for name in trace.meta.devices.values()}
    return devices.pop() if len(devices) == 1 else None

"""Memory of devices that is available for training."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tracelens.devices import Device
from tracelens.devices import device as bundled
from tracelens.errors import TracelensError
from tracelens.planner.memory.assumptions import FrameworkName

# Driver and communication contexts outside of torch's allocator took 0.8 GB on one H200 and 2.3 to 4.1 GB on
# each of two (tests/planner/memory/measured_memory.toml).
RESERVE_BYTES = 4 * 2**30


class Room(NamedTuple):
    """Memory of a device.

    Attributes:
        bytes: as reported by the driver, else the nameplate.
        reported: whether the driver's figure is known.
        reserve: bytes kept free.
    """

    bytes: int
    reported: bool
    reserve: int

    @property
    def usable(self) -> int:
        return self.bytes - self.reserve


def room(device: Device, framework: FrameworkName, reserve: int | None) -> Room:
    """Memory of a device for training.

    Args:
        device: with its nameplate memory.
        framework: "amd-guide" compares with the nameplate: by default everything above it is reserve.
        reserve: bytes to keep free instead of the default.

    Raises:
        TracelensError: the device's memory is unknown, or the reserve leaves nothing of it.
    """
    if not device.hbm_bytes:
        raise TracelensError(f"the memory of {device.name} is unknown: add hbm_bytes to its device file")
    if reserve is not None and reserve < 0:
        raise TracelensError(f"reserve must be 0 bytes or more, not {reserve}")
    reported = _reported().get(device.name, 0)
    if reported and device.hbm_bytes != bundled(device.name).hbm_bytes:
        # A device file of the user with another memory size.
        reported = 0
    device_bytes = reported or device.hbm_bytes
    default_reserve = device_bytes - device.hbm_bytes if framework == "amd-guide" else RESERVE_BYTES
    device_room = Room(device_bytes, bool(reported), default_reserve if reserve is None else reserve)
    if device_room.usable <= 0:
        raise TracelensError(
            f"the reserve leaves nothing of the {device_bytes / 2**30:.0f} GiB of {device.name}"
        )
    return device_room


@cache
def _reported() -> dict[str, int]:
    content = tomllib.loads(Path(__file__).with_name("drivers.toml").read_text(encoding="utf-8"))
    return {name: entry["bytes"] for name, entry in content.items()}

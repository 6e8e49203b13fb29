"""How much memory devices have in real bytes, and whether a layout fits."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tracelens.devices import Device
from tracelens.projection.memory.assumptions import ConventionName

# What the contexts of the driver and of communication libraries took beside torch's allocator, 0.8 GB on one
# H200 and 2.3 to 4.1 GB on each of two (tests/projection/measured_memory.toml).
RESERVE_BYTES = 4_000_000_000


class Room(NamedTuple):
    """Memory of a device.

    Attributes:
        bytes: as the driver reports it; of the nameplate where that is not known.
        reported: whether it is known.
        reserve: bytes that are not for training.
    """

    bytes: int
    reported: bool
    reserve: int

    @property
    def usable(self) -> int:
        """Bytes for training."""
        return self.bytes - self.reserve


def room(device: Device, convention: ConventionName, reserve: int | None) -> Room:
    """Memory of a device for training.

    Args:
        device: which.
        convention: "brief" compares with the nameplate: all above is reserve.
        reserve: bytes to leave free instead of the usual ones.
    """
    reported = _reported().get(device.name, 0)
    whole = reported or device.hbm_bytes
    usual = whole - device.hbm_bytes if convention == "brief" else RESERVE_BYTES
    return Room(whole, bool(reported), usual if reserve is None else reserve)


@cache
def _reported() -> dict[str, int]:
    content = tomllib.loads(Path(__file__).with_name("drivers.toml").read_text(encoding="utf-8"))
    return {name: entry["bytes"] for name, entry in content.items()}

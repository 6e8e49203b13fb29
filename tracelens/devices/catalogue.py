"""What GPUs can do: peaks, memory and links, from one TOML file each, with a source for every number.

    device("mi355x").peak("matrix", "bf16")     # 2516.6e12
    match("AMD Instinct MI300X VF").name        # "mi300x"
    read_device("mine.toml")                    # a file of your own; copy a bundled one and edit it

Devices know no ops. Nothing is read before it is asked for.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tracelens.devices.names import best, words
from tracelens.devices.read import read_bundled, read_device
from tracelens.devices.spec import DTYPES, Device, Engine
from tracelens.errors import UnknownName

__all__ = ["DTYPES", "Device", "Engine", "device", "devices", "match", "read_device"]


def devices() -> list[Device]:
    """All bundled devices: by vendor, then from slower to faster memory, which is also from old to new."""
    return list(_bundled())


def device(name: str) -> Device:
    """The bundled device of a name, title or alias, in upper or lower case; or that of a file `NAME.toml`.

    Raises:
        UnknownName: there is none; the message has the nearest known one.
        TracelensError: the file cannot be read, or a key of it is wrong.
    """
    if name.endswith(".toml"):
        return read_device(name)
    query = words(name)
    for item in _bundled():
        if query in map(words, (item.name, item.title, *item.aliases)):
            return item
    matched = match(name)
    if matched is None:
        raise UnknownName("device", name.lower(), [item.name for item in _bundled()])
    return matched


@cache
def match(trace_name: str) -> Device | None:
    """The bundled device that a trace calls by this name, None where there is none.

    The longest alias that stands in the name as whole words wins. A name that goes on to say that it is
    another product (PCIe and NVL cards, MIG slices) matches nothing: those have peaks of their own.
    """
    return best(trace_name, _bundled())


@cache
def _bundled() -> tuple[Device, ...]:
    files = Path(__file__).parent.glob("*.toml")
    devices = (read_bundled(file) for file in files)
    return tuple(sorted(devices, key=lambda item: (item.vendor, item.hbm_bytes_per_s, item.hbm_bytes)))

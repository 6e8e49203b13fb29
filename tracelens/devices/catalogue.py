"""What GPUs can do: peaks, memory and links, from one TOML file each, with a source for every number.

    device("mi355x").peak("matrix", "bf16")     # 2516.6e12
    match("AMD Instinct MI300X VF").name        # "mi300x"
    read_device("mine.toml")                    # a file of your own; copy a bundled one and edit it

Devices know no ops. Nothing is read before it is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from tracelens.devices.files import read_bundled, read_device
from tracelens.devices.spec import Device
from tracelens.errors import UnknownName

_WORD = re.compile(r"[a-z0-9.]+")

# What makes another product of the same chip: fewer units, lower clocks or slower memory. "MI250X/MI250"
# is what some drivers call both of these, so it says nothing.
_OTHER_PRODUCT = frozenset({"pcie", "nvl", "mig", "mi250"})


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


def best(name: str, candidates: Iterable[Device]) -> Device | None:
    """The candidate with the longest alias in `name`; the first of them where two are as long."""
    have = words(name)
    longest: Device | None = None
    length = 0
    for candidate in candidates:
        for alias in candidate.aliases:
            if len(alias) <= length:
                continue
            size = len(words(alias))
            starts = range(len(have) - size + 1)
            start = next((start for start in starts if have[start : start + size] == words(alias)), None)
            # The rest of the name must name no other product.
            if start is not None and _OTHER_PRODUCT.isdisjoint((*have[:start], *have[start + size :])):
                longest, length = candidate, len(alias)
    return longest


def words(name: str) -> tuple[str, ...]:
    """The words of a name in lower case; anything but letters, digits and dots separates."""
    return tuple(_WORD.findall(name.lower()))


@cache
def _bundled() -> tuple[Device, ...]:
    files = Path(__file__).parent.glob("*.toml")
    devices = (read_bundled(file) for file in files)
    return tuple(sorted(devices, key=lambda item: (item.vendor, item.hbm_bytes_per_s, item.hbm_bytes)))

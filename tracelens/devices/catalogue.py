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
from typing import NamedTuple, Protocol, TypeVar

from tracelens.bundled import bundled_toml
from tracelens.devices.files import read_bundled, read_device, read_peaks
from tracelens.devices.spec import Device
from tracelens.errors import UnknownName

_WORD = re.compile(r"[a-z0-9.]+")

# What makes another product of the same chip: fewer units, lower clocks or slower memory. "MI250X/MI250"
# is what some drivers call both of these, so it says nothing.
_OTHER_PRODUCT = frozenset({"pcie", "nvl", "mig", "mi250", "3e"})


class _Head(NamedTuple):
    """What a device file says before its tables."""

    order: tuple[str, float, float]
    path: Path
    name: str
    title: str
    aliases: tuple[str, ...]


class HasAliases(Protocol):
    """What a trace may call by several names."""

    @property
    def aliases(self) -> tuple[str, ...]: ...


Named = TypeVar("Named", bound=HasAliases)


def devices(*, rated: bool = False) -> list[Device]:
    """All bundled devices: by vendor, then from slower to faster memory, which is also from old to new.

    Where their peaks are all that is asked, `rated` leaves out sources and what was measured: most of a file.
    """
    return [_rated(head.path) if rated else _read(head.path) for head in _heads()]


def device(name: str) -> Device:
    """The bundled device of a name, title or alias, in upper or lower case; or that of a file `NAME.toml`.

    Raises:
        UnknownName: there is none; the message has the nearest known one.
        TracelensError: the file cannot be read, or a key of it is wrong.
    """
    if name.endswith(".toml"):
        return read_device(name)
    query = words(name)
    for head in _heads():
        if query in map(words, (head.name, head.title, *head.aliases)):
            return _read(head.path)
    matched = match(name)
    if matched is None:
        raise UnknownName("device", name.lower(), [head.name for head in _heads()])
    return matched


@cache
def match(trace_name: str) -> Device | None:
    """The bundled device that a trace calls by this name, None where there is none.

    The longest alias that stands in the name as whole words wins. A name that goes on to say that it is
    another product (PCIe and NVL cards, MIG slices) matches nothing: those have peaks of their own.
    """
    head = best(trace_name, _heads())
    return None if head is None else _read(head.path)


def best(name: str, candidates: Iterable[Named]) -> Named | None:
    """The candidate with the longest alias in `name`; the first of them where two are as long."""
    have = words(name)
    longest: Named | None = None
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
def _heads() -> tuple[_Head, ...]:
    """Of all bundled files, in the order of their devices."""
    heads = []
    for path in Path(__file__).parent.glob("*.toml"):
        known = bundled_toml(path)
        size = known.get("hbm_bytes", 0)
        order = (known["vendor"], known["hbm_bytes_per_s"], size)
        heads.append(_Head(order, path, known["name"], known["title"], tuple(known["aliases"])))
    return tuple(sorted(heads))


@cache
def _read(path: Path) -> Device:
    return read_bundled(path)


@cache
def _rated(path: Path) -> Device:
    return read_peaks(path)

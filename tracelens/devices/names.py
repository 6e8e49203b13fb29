"""Device names as drivers spell them, and the devices they mean."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tracelens.devices.spec import Device

_WORD = re.compile(r"[a-z0-9.]+")

# What makes another product of the same chip: fewer units, lower clocks or slower memory. "MI250X/MI250"
# is what some drivers call both of these, so it says nothing.
_OTHER_PRODUCT = frozenset({"pcie", "nvl", "mig", "mi250"})


def words(name: str) -> tuple[str, ...]:
    """The words of a name in lower case; anything but letters, digits and dots separates."""
    return tuple(_WORD.findall(name.lower()))


def best(name: str, candidates: Iterable[Device]) -> Device | None:
    """The candidate with the longest alias in `name`; the first of them where two are as long."""
    have = words(name)
    longest: Device | None = None
    length = 0
    for candidate in candidates:
        for alias in candidate.aliases:
            if len(alias) > length and _names(words(alias), have):
                longest, length = candidate, len(alias)
    return longest


def _names(alias: Sequence[str], name: Sequence[str]) -> bool:
    """Whether `alias` stands in `name` and the rest of it names no other product."""
    size = len(alias)
    for start in range(len(name) - size + 1):
        if name[start : start + size] == alias:
            return _OTHER_PRODUCT.isdisjoint((*name[:start], *name[start + size :]))
    return False

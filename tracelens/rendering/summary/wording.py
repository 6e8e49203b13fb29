"""Numbers and names as the sentences of a summary have them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from tracelens.guard import Failure, guard
from tracelens.table import Summary
from tracelens.units import GIB, duration, plural

_CHIP = re.compile(r"\b(?:MI\d{3}\w?|[ABHLV]\d{2,3}S?|G?B\d{3}|RTX \w+)\b")
_NAMELESS = re.compile(r"(?:(?P<driver>.+), )?(?P<units>\d+ CUs), \d+\.\d+, (?P<memory>\d+ GB)")
"""What stands for the name of a GPU whose driver gives it none."""
_VENDOR = re.compile(r"\b(?:NVIDIA|AMD|Instinct|Tesla|GeForce)\b ?")


def guarded(make: Callable[[], Summary | None]) -> Summary | None:
    """What `make` returns; a bug in it costs the summary, not the report: its verdict is the Failure."""
    summary = guard("the summary", make)
    return Summary(summary) if isinstance(summary, Failure) else summary


def percent(fraction: float) -> str:
    """A share with two digits: '38%', '6.5%', '<0.1%'; never 100% of what is not all of it."""
    if 0 < fraction < 0.001:
        return "<0.1%"
    if 0.995 <= fraction < 1:
        return ">99%"
    return f"{fraction:.1%}" if 0 < fraction < 0.0995 else f"{fraction:.0%}"


def about(ns: float) -> str:
    """A projected time, whose last digits mean nothing: '42 ms', '77.8 ms'."""
    value, _, unit = duration(ns).partition(" ")
    return f"{value.rstrip('0').rstrip('.') if '.' in value else value} {unit}"


def size(size_bytes: float) -> str:
    """Memory in GiB to three digits: '64.2 GiB'."""
    value = size_bytes / GIB
    return f"{value:.1f} GiB" if value < 1000 else f"{value:,.0f} GiB"


def short_device(name: str) -> str:
    """The chip in a driver's name for a device: 'NVIDIA H100 80GB HBM3' is an H100.

    A chip without a name is what is known of it: 'unnamed GPU (304 CUs, 206 GB)'.
    """
    if known := _NAMELESS.fullmatch(name):
        return f"{known['driver'] or 'unnamed GPU'} ({known['units']}, {known['memory']})"
    chips = set(_CHIP.findall(name))
    return chips.pop() if len(chips) == 1 else _VENDOR.sub("", name).strip()


def hardware(devices: Collection[str], ranks: int) -> str:
    """What a run ran on, for a sentence: '4 x H200', '1 GPU', '8 GPUs (H100, H200)'."""
    names = sorted({short_device(name) for name in devices} - {""})
    if len(names) == 1:
        return names[0] if ranks == 1 else f"{ranks:,} x {names[0]}"
    listed = f" ({', '.join(names)})" if names else ""
    return f"{plural(ranks, 'GPU')}{listed}"


def short_reason(reason: str, width: int = 72) -> str:
    """Why something is missing, as far as a tile has room for it."""
    first = reason.split("; ")[0]
    return first if len(first) <= width else f"{first[: width - 1].rstrip()}…"

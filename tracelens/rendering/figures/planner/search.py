"""Layouts of a search: what the step of each is made of, a figure a device."""

from __future__ import annotations

import numpy as np

from tracelens.rendering.figures.base import plain, stacked_bars, table, where
from tracelens.rendering.figures.figure import Figure, figure
from tracelens.table import Result, Table

_ROWS = 30
"""Layouts that are drawn of a device."""
_DEVICES = 6


@figure("search")
def search(result: Result) -> list[Figure]:
    """Table `parts` as a stacked bar a layout, the shortest step first."""
    found = table(result, "parts", "device", "place", "layout", "part", "ns")
    if found is None:
        return []
    devices = np.array(found.texts("device"))
    names = list(dict.fromkeys(devices.tolist()))[:_DEVICES]
    return [_drawn(name, where(found, devices == name)) for name in names]


def _drawn(device: str, found: Table) -> Figure:
    """The layouts of one device; those that do not fit say so."""
    places, layouts = found.array("place").tolist(), found.texts("layout")
    keys = list(dict.fromkeys(zip(places, layouts, strict=True)))[:_ROWS]
    row = {key: at for at, key in enumerate(keys)}
    parts = {part: [0.0] * len(keys) for part in dict.fromkeys(found.texts("part"))}
    values = zip(places, layouts, found.texts("part"), found.array("ns").tolist(), strict=True)
    for place, layout, part, ns in values:
        if (place, layout) in row:
            parts[part][row[place, layout]] += ns
    whole = [max(sum(column), 1.0) for column in zip(*parts.values(), strict=True)]
    shares = {
        part: [ns / step for ns, step in zip(column, whole, strict=True)] for part, column in parts.items()
    }
    fits = any(place > 0 for place, _ in keys)
    names = [f"{place}: {layout}" if place > 0 else f"does not fit: {layout}" for place, layout in keys]
    title = f"Least time of a step on {plain(device, 40)} by layout"
    return stacked_bars(title if fits else f"{title}; none fits", names, parts, shares)

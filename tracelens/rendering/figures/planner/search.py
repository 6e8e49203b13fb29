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
    per_part = table(result, "parts", "device", "place", "layout", "part", "ns")
    if per_part is None:
        return []
    devices = np.array(per_part.texts("device"))
    names = list(dict.fromkeys(devices.tolist()))[:_DEVICES]
    return [_drawn(name, where(per_part, devices == name)) for name in names]


def _drawn(device: str, per_part: Table) -> Figure:
    """The layouts of one device; those that do not fit say so."""
    positions, layouts = per_part.array("place").tolist(), per_part.texts("layout")
    keys = list(dict.fromkeys(zip(positions, layouts, strict=True)))[:_ROWS]
    row = {key: index for index, key in enumerate(keys)}
    parts = {part: [0.0] * len(keys) for part in dict.fromkeys(per_part.texts("part"))}
    values = zip(positions, layouts, per_part.texts("part"), per_part.array("ns").tolist(), strict=True)
    for position, layout, part, ns in values:
        if (position, layout) in row:
            parts[part][row[position, layout]] += ns
    totals = [max(sum(column), 1.0) for column in zip(*parts.values(), strict=True)]
    shares = {
        part: [ns / step for ns, step in zip(column, totals, strict=True)] for part, column in parts.items()
    }
    fits = any(position > 0 for position, _ in keys)
    names = [
        f"{position}: {layout}" if position > 0 else f"does not fit: {layout}" for position, layout in keys
    ]
    title = f"Least time of a step on {plain(device, 40)} by layout"
    return stacked_bars(title if fits else f"{title}; none fits", names, parts, shares)

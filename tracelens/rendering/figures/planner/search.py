"""Layouts of a search: what the step of each is made of, a figure a device."""

from __future__ import annotations

import numpy as np

from tracelens.rendering.figures.base import needs, plain, stacked_bars
from tracelens.rendering.figures.colors import STEP_PARTS, colors
from tracelens.rendering.figures.figure import Figure, figure
from tracelens.table import Table

_ROWS = 30
"""Layouts that are drawn of a device."""
_DEVICES = 6


@figure("search")
@needs("parts", "device", "position", "layout", "part", "ns")
def search(per_part: Table) -> list[Figure]:
    """Table `parts` as a stacked bar a layout, the shortest step first."""
    devices = per_part.coded("device")
    names = list(dict.fromkeys(devices.texts()))[:_DEVICES]
    return [_drawn(name, per_part.take(devices.equals(name))) for name in names]


def _drawn(device: str, per_part: Table) -> Figure:
    """The layouts of one device; those that do not fit say so."""
    times = per_part.pivot("part", ("position", "layout"), "ns")
    keys = times.columns[:_ROWS]
    parts = {part: ns[:_ROWS] for part, ns in times.by_row().items()}
    total_ns = np.maximum(times.values[:, :_ROWS].sum(axis=0), 1)
    fits = any(position > 0 for position, _ in keys)
    names = [
        f"{position}: {layout}" if position > 0 else f"does not fit: {layout}" for position, layout in keys
    ]
    title = f"Lower bound of the step time on {plain(device, 40)}, by layout"
    return stacked_bars(
        title if fits else f"{title}; none fits",
        names,
        parts,
        {part: ns / total_ns for part, ns in parts.items()},
        colors(parts, STEP_PARTS),
    )

"""Hand-built searches with nasty names, for their figures."""

from __future__ import annotations

from tests.rendering.sample import NASTY, NS, result, table
from tracelens.table.result import Result
from tracelens.table.schema import Column

PARTS = ("forward", "backward", "bubble")


def search(layouts: int = 3, devices: int = 2, fits: bool = True) -> Result:
    """Layouts on devices; the parts of the first take 3, 2 and 1 ms, those of the next each 1 ms more."""
    rows = [
        (NASTY[device % len(NASTY)] + str(device), place, NASTY[place % len(NASTY)] + str(place), part)
        for device in range(devices)
        for place in range(layouts)
        for part in range(len(PARTS))
    ]
    return result(
        "search",
        "Layouts",
        {
            "parts": table(
                "Parts",
                (
                    Column("device", "category"),
                    Column("position", "int64", "count"),
                    Column("layout", "str"),
                    Column("part", "category"),
                    Column("ns", "int64", NS),
                ),
                {
                    "device": [device for device, *_ in rows],
                    "position": [place + 1 if fits else -1 for _, place, *_ in rows],
                    "layout": [layout for *_, layout, _ in rows],
                    "part": [PARTS[part] for *_, part in rows],
                    "ns": [(3 - part + place) * 1_000_000 for _, place, _, part in rows],
                },
            )
        },
    )

"""Hand-built searches and scaling projections with nasty names, for their figures."""

from __future__ import annotations

from tests.rendering.sample import NASTY, NS, result, table
from tracelens.table import Column, Result

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


def scaling(ranks: int = 3, dispatches: int = 2) -> Result:
    """Dispatches over 8, 16, ... ranks; the first takes 1 ms, each next 1 ms more, half of it computation."""
    rows = [
        (NASTY[number % len(NASTY)] + str(number), 8 << size)
        for number in range(dispatches)
        for size in range(ranks)
    ]
    keys = {"dispatch": [name for name, _ in rows], "ep": [ep for _, ep in rows]}
    step_ns = [(row + 1) * 1_000_000 for row in range(len(rows))]
    shares = {"compute": 0.5, "all_to_all": 0.2, "p2p": 0.1, "other": 0.1, "bubble": 0.1}
    columns = (Column("dispatch", "category"), Column("ep", "int64", "count"))
    return result(
        "scaling",
        "Scaling",
        {
            "scaling": table(
                "Throughput",
                (*columns, Column("tokens_per_s", "float64"), Column("speedup", "float64")),
                {**keys, "tokens_per_s": [1e9 / ns for ns in step_ns], "speedup": [1.5] * len(rows)},
            ),
            "breakdown": table(
                "Time of a step",
                (
                    *columns,
                    Column("step_ns", "int64", NS),
                    *(Column(part, "float64", "fraction") for part in shares),
                ),
                {**keys, "step_ns": step_ns} | {part: [share] * len(rows) for part, share in shares.items()},
            ),
        },
    )

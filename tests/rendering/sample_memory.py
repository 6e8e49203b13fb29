"""A hand-built memory projection with nasty names."""

from __future__ import annotations

from collections.abc import Sequence

from tests.rendering.sample import NASTY, result, table
from tracelens.table import Column, Result, Table

PARTS = ("parameters", "activations.experts", "temporary", NASTY[0])


def memory(layouts: int = 1, stages: int = 4, devices: int = 2) -> Result:
    """Layouts whose rank r, the first one first, has 10, 20, 30, 40 GiB, times r + 1."""
    names = [f"{NASTY[number % len(NASTY)]} {number}" for number in range(layouts)]
    rows = [
        (name, stage, part, 10 * 2**30 * (place + 1) * (stage + 1))
        for name in names
        for stage in range(stages)
        for place, part in enumerate(PARTS)
    ]
    columns = (
        Column("layout", "category"),
        Column("pp_rank", "int64"),
        Column("component", "category"),
        Column("bytes", "int64", "bytes"),
    )
    found = {"memory": _table("Memory by component", columns, rows)}
    if devices:
        fits = (
            Column("device", "category"),
            Column("memory_bytes", "int64", "bytes"),
            Column("reserve_bytes", "int64", "bytes"),
        )
        has = [
            (NASTY[number], 100 * 2**30 * (number + 1), 4 * 2**30) for _ in names for number in range(devices)
        ]
        found["fits"] = _table("Does it fit", fits, has)
    return result("memory", "Memory", found)


def _table(title: str, columns: tuple[Column, ...], rows: Sequence[tuple[object, ...]]) -> Table:
    data = zip(*rows, strict=True)
    return table(title, columns, {column.name: list(of) for column, of in zip(columns, data, strict=True)})

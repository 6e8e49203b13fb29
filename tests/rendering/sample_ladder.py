"""A hand-built ladder with nasty names, for its figures."""

from __future__ import annotations

import numpy as np

from tests.rendering.sample import NASTY, NS, result, table
from tracelens.table import Column, Result


def ladder(rungs: int = 4, parts: int = 4, peak: int = 10 << 30, speedup: float = 1.0) -> Result:
    """A ladder in two levels: each rung saves a millisecond of the first part and adds a bit of the last.

    Args:
        rungs: with the baseline.
        parts: of the step, of the level "category".
        peak: bytes of the baseline, each rung one GiB less; -1 for not measured.
        speedup: of the baseline; -1 for not timed.
    """
    names = [NASTY[at % len(NASTY)] + str(at) for at in range(rungs)]
    number = np.arange(rungs)
    head = table(
        "Rungs",
        (
            Column("rung", "int64", "count"),
            Column("name", "str"),
            Column("timed_ns", "int64", NS),
            Column("spread", "float64", "ratio"),
            Column("tokens_per_s", "int64"),
            Column("speedup", "float64"),
            Column("peak_bytes", "int64", "bytes"),
        ),
        {
            "rung": number,
            "name": names,
            "timed_ns": 100_000_000 - number,
            "spread": np.full(rungs, 0.1),
            "tokens_per_s": 1000 + number,
            "speedup": speedup + 0.1 * number if speedup > 0 else np.full(rungs, -1.0),
            "peak_bytes": peak - (number << 30) if peak >= 0 else np.full(rungs, -1),
        },
    )
    rows = []
    for rung in range(1, rungs):
        for part in range(parts):
            before = 200_000_000 if part == 0 else 1_000_000 * part
            moved = -1_000_000 if part == 0 else 100_000 if part == parts - 1 else 0
            base = before + moved * (rung - 1)
            rows.append((rung, names[rung], "category", f"part {part}", base, base + moved, moved))
        whole = [sum(row[at] for row in rows[-parts:]) for at in (4, 5, 6)]
        rows.append((rung, names[rung], "cause", NASTY[0], *whole))
    columns = (
        Column("rung", "int64", "count"),
        Column("rung_name", "category"),
        Column("level", "category"),
        Column("name", "category"),
        Column("base_ns", "int64", NS),
        Column("cand_ns", "int64", NS),
        Column("delta_ns", "int64", NS),
    )
    cut = table(
        "Waterfall",
        columns,
        {column.name: [row[at] for row in rows] for at, column in enumerate(columns)},
        detail=True,
    )
    return result("ladder", "Ladder", {"rungs": head, "waterfall": cut})

"""A hand-built what-if with nasty names, for its figures."""

from __future__ import annotations

import numpy as np

from tests.rendering.sample import NASTY, NS, result, table
from tracelens.table import Column, Result


def whatif(scenarios: int = 4, parts: int = 6) -> Result:
    """Scenarios each a millisecond slower than the one before, in as many parts of equal time."""
    names = [NASTY[at % len(NASTY)] + str(at) for at in range(scenarios)]
    projected = 50_000_000 + 1_000_000 * np.arange(scenarios)
    rows = ["(measured)", *names]
    whole = np.concatenate(([80_000_000], projected))
    return result(
        "whatif",
        "What if",
        {
            "whatif": table(
                "Step time if something were otherwise",
                (
                    Column("scenario", "str"),
                    Column("base_ns", "int64", NS),
                    Column("projected_ns", "int64", NS),
                    Column("low_ns", "int64", NS),
                    Column("high_ns", "int64", NS),
                    Column("gain", "float64", "ratio"),
                ),
                {
                    "scenario": names,
                    "base_ns": np.full(scenarios, 80_000_000),
                    "projected_ns": projected,
                    "low_ns": projected - 1_000_000,
                    "high_ns": projected + 2_000_000,
                    "gain": 80_000_000 / projected - 1,
                },
            ),
            "critical_path": table(
                "Critical path",
                (
                    Column("scenario", "str"),
                    Column("category", "category"),
                    Column("dur_ns", "int64", NS),
                ),
                {
                    "scenario": [name for name in rows for _ in range(parts)],
                    "category": [f"part {number}" for _ in rows for number in range(parts)],
                    "dur_ns": np.repeat(whole // parts, parts),
                },
            ),
        },
        meta={"step": "ProfilerStep#1", "base_ns": 80_000_000},
    )

"""Sides of a gate made of numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tracelens.compare.gate import Samples

UNITS = {"time": "ns", "count": "count", "peak": "bytes", "bytes": "bytes", "fraction": "fraction"}


def side(name: str = "side", *, ranks: Sequence[int] = (0,), **options: object) -> Samples:
    """Samples of metrics: `metrics` maps a name to one number a step, or to a list of such, one a rank."""
    metrics = options.pop("metrics")
    assert isinstance(metrics, Mapping)
    values = {key: np.array(rows, dtype=float, ndmin=2) for key, rows in metrics.items()}
    count = max(rows.shape[1] for rows in values.values())
    values = {key: np.broadcast_to(rows, (len(ranks), count)).copy() for key, rows in values.items()}
    units = {key: UNITS.get(key.rpartition(".")[2], "count") for key in values}
    steps = tuple(f"ProfilerStep#{step}" for step in range(count))
    return Samples(name, tuple(ranks), steps, values, units, **options)  # type: ignore[arg-type]

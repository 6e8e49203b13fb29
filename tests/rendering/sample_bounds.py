"""Hand-built bounds with nasty names, for their figures."""

from __future__ import annotations

import numpy as np

from tests.rendering.sample import NASTY, result, table
from tracelens.table import Column, Result

TEXT = ("operation", "collective", "group", "shape", "limited_by")


def bounds(shapes: int = 3) -> Result:
    """Two operations of as many shapes, each resource slower with each shape."""
    size = np.arange(1, shapes + 1)
    columns = {
        "operation": [name for name in NASTY[:2] for _ in range(shapes)],
        **{name: np.tile(size * 1024, 2) for name in "mnk"},
        "gemm_ns": np.tile(size * 2_000.0, 2),
        "memory_ns": np.tile(size * 1_000.0, 2),
        "link_ns": np.tile(size * 3_000.0, 2),
        "serial_ns": np.tile(size * 5_000.0, 2),
    }
    return result("bounds", "Speed of light", {"gemms": table("GEMMs", _schema(columns), columns)})


def all_reduce() -> Result:
    """Two sizes on one node without a hierarchy, and on two nodes with one."""
    columns = {
        "nodes": np.array([1, 1, 2, 2]),
        "gpus": np.array([8, 8, 16, 16]),
        "bytes": np.array([1 << 17, 1 << 20] * 2),
        "ring_ns": np.array([27_000.0, 31_000.0, 66_000.0, 70_000.0]),
        "one_shot_ns": np.array([4_000.0, 18_000.0, 25_000.0, 172_000.0]),
        "two_shot_ns": np.array([4_300.0, 7_900.0, 10_600.0, 29_000.0]),
        "hierarchical_ns": np.array([-1.0, -1.0, 12_600.0, 18_500.0]),
    }
    return result("bounds", "Speed of light", {"all_reduce": table("All-reduce", _schema(columns), columns)})


def trace_bounds(rows: int = 4) -> Result:
    """Collectives that reach half of their links, and the GEMMs next to them."""
    names = [NASTY[number % len(NASTY)] for number in range(rows)]
    time = np.arange(rows, 0, -1) * 100_000.0
    collectives = {
        "collective": names,
        "group": names,
        "from_bytes": np.full(rows, 1 << 20),
        "count": np.full(rows, 3),
        "achieved": np.full(rows, 0.5),
        "excess_ns": time,
    }
    pairs = {
        "operation": names,
        "group": names,
        "shape": ["1024x1024x1024"] * rows,
        "gemm_dur_ns": time,
        "latency_ns": time * 2,
        "overlapped_ns": time,
        "serial_ns": time * 1.5,
    }
    tables = {
        "collectives": table("Collectives", _schema(collectives), collectives),
        "pairs": table("GEMMs", _schema(pairs), pairs),
    }
    return result("trace_bounds", "Collectives against the speed of light", tables)


def _schema(columns: dict[str, object]) -> tuple[Column, ...]:
    return tuple(
        Column(name, "category")
        if name in TEXT
        else Column(name, "float64" if name.endswith("_ns") or name == "achieved" else "int64")
        for name in columns
    )

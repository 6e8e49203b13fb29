"""Hand-built projections with nasty names, for their figures."""

from __future__ import annotations

import numpy as np

from tests.rendering.sample import NASTY, NS, RANK, result, table
from tracelens.table import Column, Result


def bubble(most: int = 8, published: bool = True) -> Result:
    """A bubble over 1 to `most` chunks."""
    vpp = np.arange(1, most + 1)
    tables = {
        "by_vpp": table(
            "Bubble by chunks",
            (
                Column("vpp", "int64", "count"),
                Column("bubble_fraction", "float64", "fraction"),
                Column("bubble_ideal_ratio", "float64", "ratio"),
            ),
            {"vpp": vpp, "bubble_fraction": 15 / (15 + 16 * vpp), "bubble_ideal_ratio": 15 / (16 * vpp)},
        )
    }
    if published:
        tables["published"] = table(
            "Published",
            (
                Column("vpp", "int64", "count"),
                Column("measured_fraction", "float64", "fraction"),
                Column("source", "str"),
            ),
            {"vpp": [1, 3], "measured_fraction": [0.5, 0.25], "source": [NASTY[0]] * 2},
        )
    return result("bubble", "Bubble", tables, meta={"pp": 16, "micro_batches": 16})


def pipeline_schedule(stages: int = 4, micro_batches: int = 6, schedules: int = 2, size: int = -1) -> Result:
    """Schedules in which each micro-batch of a stage has a forward, and a backward beside the next one."""
    names = [NASTY[number % len(NASTY)] + str(number) for number in range(schedules)]
    count = stages * micro_batches
    stage, micro_batch = np.divmod(np.arange(count), micro_batches)
    forward = 1_000_000 * (stage + micro_batch)
    step = np.tile(np.concatenate((np.ones(micro_batches), -np.ones(micro_batches))), stages).astype(np.int64)
    held = np.cumsum(step.reshape(stages, -1), axis=1).ravel()
    spans = {
        "rank": np.tile(np.concatenate((stage, stage)), schedules),
        "chunk": np.tile(np.concatenate((micro_batch, micro_batch)) % 2, schedules),
        "micro_batch": np.tile(np.concatenate((micro_batch, micro_batch)), schedules),
        "ts_ns": np.tile(np.concatenate((forward, forward + 1_000_000)), schedules),
        "dur_ns": np.full(2 * count * schedules, 1_000_000),
        "paired": np.tile(np.concatenate((micro_batch > 0, micro_batch < micro_batches - 1)), schedules),
        "schedule": [name for name in names for _ in range(2 * count)],
        "phase": (["forward"] * count + ["backward"] * count) * schedules,
    }
    in_flight = {
        "schedule": [name for name in names for _ in range(2 * count)],
        "rank": np.tile(np.repeat(np.arange(stages), 2 * micro_batches), schedules),
        "ts_ns": np.tile(np.tile(np.arange(2 * micro_batches) * 1_000_000, stages), schedules),
        "chunks": np.tile(held, schedules),
        "bytes": np.tile(held, schedules) * size if size >= 0 else np.full(2 * count * schedules, -1),
    }
    return result(
        "pipeline_schedule",
        "Schedules",
        {
            "summary": table(
                "Schedules",
                (
                    Column("schedule", "category"),
                    Column("makespan_ns", "int64", NS),
                    Column("bubble_fraction", "float64", "fraction"),
                    Column("longest_ns", "int64", NS),
                ),
                {
                    "schedule": names,
                    "makespan_ns": [10_000_000 + number for number in range(schedules)],
                    "bubble_fraction": [0.2] * schedules,
                    "longest_ns": [9_000_000] * schedules,
                },
            ),
            "spans": table(
                "Passes",
                (
                    Column("schedule", "category"),
                    RANK,
                    Column("chunk", "int64"),
                    Column("micro_batch", "int64"),
                    Column("phase", "category"),
                    Column("ts_ns", "int64", NS),
                    Column("dur_ns", "int64", NS),
                    Column("paired", "bool"),
                ),
                spans,
            ),
            "in_flight": table(
                "In flight",
                (
                    Column("schedule", "category"),
                    RANK,
                    Column("ts_ns", "int64", NS),
                    Column("chunks", "int64", "count"),
                    Column("bytes", "int64", "bytes"),
                ),
                in_flight,
            ),
        },
    )


def published() -> Result:
    """Two figures of two bars."""
    columns = (
        Column("figure", "int64"),
        Column("run", "str"),
        Column("published_per_s", "float64"),
        Column("projected_per_s", "float64"),
        Column("error_fraction", "float64", "fraction"),
    )
    rows = {
        "figure": np.array([5, 5, 6, 6]),
        "run": ["MBS1", "MBS2", "baseline", "+ DeepEP"],
        "published_per_s": np.array([100.0, 200.0, 200.0, 220.0]),
        "projected_per_s": np.array([110.0, 190.0, 190.0, 231.0]),
        "error_fraction": np.array([0.1, -0.05, -0.05, 0.05]),
    }
    tables = {"throughput": table("Throughput", columns, rows)}
    return Result("published", "Published measurements", tables, doc="How far off?")

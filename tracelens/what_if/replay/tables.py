"""Schemas of the what-if tables, and their rows from paths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tracelens.arrays import Int
from tracelens.table import RANK, Column, Schema, Table, codes, sums
from tracelens.what_if.replay.check import Starts
from tracelens.what_if.replay.labels import Labels
from tracelens.what_if.replay.path import CATEGORIES, Path
from tracelens.what_if.replay.rerun import CHANGED_SHARE, GPU_SHARE, HOST_SHARE

MEASURED = "(measured)"
"""Names the step without any scenario: the recorded one, less the profiler's share where that is known."""

_SCENARIO = Column("scenario", "str", doc="the change, as `--scenario` takes it")

WHATIF = Schema(
    "Projected step time",
    (
        _SCENARIO,
        Column("base_ns", "int64", "ns", "step without the profiler where known, else recorded; rank mean"),
        Column("projected_ns", "int64", "ns", "step under the scenario"),
        Column("low_ns", "int64", "ns", "shortest replayed step"),
        Column("high_ns", "int64", "ns", "longest replayed step"),
        Column("rerun_low_ns", "int64", "ns", "shortest step that a run with the change should measure"),
        Column("rerun_high_ns", "int64", "ns", "longest step that a run with the change should measure"),
        Column("gain", "float64", "ratio", "throughput gain: base / projected - 1"),
        Column("bottleneck", "category", doc="largest part of the new critical path"),
    ),
    doc="Replays the run's dependency graph (launches, streams, waits, collectives across ranks) with other "
    "durations. Low to high: all recorded steps, with unexplained delays kept, at their median, and removed; "
    "with N similar steps, another one falls in this range with probability (N-1)/(N+1). Where the step "
    "without the profiler is unknown, low also covers half the host time, else low and high cover 0.65 and "
    f"1.25 of it. Rerun low to high adds run-to-run variation: host time ±{HOST_SHARE:.0%}, GPU work "
    f"±{GPU_SHARE:.0%}, and ±{CHANGED_SHARE:.0%} where the scenario sets its duration. Excludes what the "
    "assumptions leave out.",
)
ASSUMPTIONS = Schema(
    "Assumptions",
    (
        _SCENARIO,
        Column("change", "str", doc="what the scenario changes", prose=True),
        Column(
            "assumption", "str", doc="what the projection assumes, with the amount that changes", prose=True
        ),
    ),
    kind="entries",
)
CRITICAL_PATH = Schema(
    "Critical path",
    (
        Column("scenario", "str", doc=f"{MEASURED} for the recorded step"),
        Column(
            "category",
            "category",
            doc="kernel class, or: " + "; ".join(f"{name}: {doc}" for name, doc in CATEGORIES.items()),
        ),
        Column("dur_ns", "int64", "ns", "on the rank that ends the step last"),
        Column("fraction", "float64", "fraction", "of that step"),
        Column("delta_ns", "int64", "ns", "projected - measured"),
    ),
    doc="The largest part of each step, then the second largest, and so on. "
    + "; ".join(f"{name}: {doc}" for name, doc in CATEGORIES.items())
    + ".",
)
BOTTLENECKS = Schema(
    "Bottlenecks",
    (
        _SCENARIO,
        Column("rank", "int64", doc="rank that the critical path runs on there"),
        Column("category", "category", doc="as in `critical_path`"),
        Column("name", "category", doc="kernel, op or collective; for host time, the op it leads to"),
        Column("count", "int64", "count", "pieces of the path"),
        Column("dur_ns", "int64", "ns", "time on the critical path"),
        Column("fraction", "float64", "fraction", "of the step"),
    ),
    doc="What to shorten next, by rank and name: the largest part of each critical path, then the second "
    "largest, and so on.",
    key=(),
)
EXPLAINED = Schema(
    "How well the graph explains the step",
    (
        Column("replay", "str", doc="which replay: unchanged, or from durations alone"),
        Column("base_ns", "int64", "ns", "recorded step"),
        Column("replayed_ns", "int64", "ns", "step that this replay gives"),
        Column("error", "float64", "ratio", "replayed / base - 1"),
        Column("unexplained_fraction", "float64", "fraction", "of the step, see `trust`"),
        Column("meaning", "str", doc="what this replay tests", prose=True),
    ),
)
TRUST = Schema(
    "Predicted starts against recorded ones",
    (
        RANK,
        Column("kind", "category", doc="kernel (copies and memsets included), collective, or host call"),
        Column("count", "int64", "count", "in the step"),
        Column("without_cause", "int64", "count", "of these, waiting for nothing recorded: not predicted"),
        Column("p50_ns", "int64", "ns", "median distance of predicted and recorded start", intensive=True),
        Column("p90_ns", "int64", "ns", "90th percentile of it", intensive=True),
        Column("p99_ns", "int64", "ns", "99th percentile of it", intensive=True),
        Column("unexplained_ns", "int64", "ns", "on the rank's critical path"),
        Column("unexplained_fraction", "float64", "fraction", "of the rank's step"),
    ),
    doc="Starts predicted from durations alone: of GPU work, of transfers, and of the host between calls. "
    "All other gaps follow from recorded dependencies, at the median of their kind. Unexplained is "
    "time for which something waited longer, and communication whose other ranks are not in the "
    "traces.",
)
STEP_RANKS = Schema(
    "Step time by rank",
    (
        _SCENARIO,
        RANK,
        Column("base_ns", "int64", "ns", "step before the change"),
        Column("projected_ns", "int64", "ns", "step under the scenario"),
    ),
    detail=True,
)

TABLES = {
    "whatif": WHATIF,
    "assumptions": ASSUMPTIONS,
    "critical_path": CRITICAL_PATH,
    "bottlenecks": BOTTLENECKS,
    "explained": EXPLAINED,
    "trust": TRUST,
    "ranks": STEP_RANKS,
}

_NAMES = 8


def interleaved(schema: Schema, parts: Sequence[Mapping[str, Sequence[Any]]]) -> Table:
    """One table of several: the first row of each, then the second of each, and so on."""
    order = sorted((row, number) for number, part in enumerate(parts) for row in range(len(part["scenario"])))
    return schema.from_rows(
        {name: parts[number][name][row] for name in schema.names} for row, number in order
    )


def path_rows(scenario: str, path: Path, before: Mapping[str, int]) -> dict[str, list[Any]]:
    """Rows of CRITICAL_PATH; `before` maps category to its measured ns."""
    now, step_ns = path.by_category(), max(path.end - path.start, 1)
    names = [*now, *(name for name in before if name not in now)]
    return {
        "scenario": [scenario] * len(names),
        "category": names,
        "dur_ns": [now.get(name, 0) for name in names],
        "fraction": [now.get(name, 0) / step_ns for name in names],
        "delta_ns": [now.get(name, 0) - before.get(name, 0) for name in names],
    }


def trust_row(starts: Starts, rank: int, unexplained_ns: int, step_ns: int) -> dict[str, Any]:
    """One row of TRUST."""
    far = np.abs(starts.error) if len(starts.error) else np.zeros(1, dtype=np.int64)
    p50, p90, p99 = np.percentile(far, (50, 90, 99)).round().astype(np.int64).tolist()
    return {
        "rank": rank,
        "kind": starts.kind,
        "count": len(starts.error) + starts.no_cause,
        "without_cause": starts.no_cause,
        "p50_ns": p50,
        "p90_ns": p90,
        "p99_ns": p99,
        "unexplained_ns": unexplained_ns,
        "unexplained_fraction": unexplained_ns / max(step_ns, 1),
    }


def bottleneck_rows(
    scenario: str, path: Path, names: Labels, ranks: Sequence[int], rank_of_node: Int
) -> dict[str, list[Any]]:
    """Rows of BOTTLENECKS; `ranks[place[node]]` is the rank of a node."""
    node, category, start, end = path.pieces
    group, keys = codes(rank_of_node[node], category, names.name.codes[node].astype(np.int64))
    _, first, count = np.unique(group, return_index=True, return_counts=True)
    dur_ns = sums(group, end - start, len(first))
    most = np.lexsort((first, -dur_ns))[:_NAMES]
    columns = [[int(key[number]) for number in most] for key in keys]
    step_ns = max(path.end - path.start, 1)
    return {
        "scenario": [scenario] * len(most),
        "rank": [ranks[index] for index in columns[0]],
        "category": [path.categories[code] for code in columns[1]],
        "name": [names.name.values[code] for code in columns[2]],
        "count": count[most].tolist(),
        "dur_ns": dur_ns[most].tolist(),
        "fraction": [ns / step_ns for ns in dur_ns[most].tolist()],
    }

"""The tables of a what-if: their schemas, and rows from paths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tracelens.arrays import Int
from tracelens.table import Column, Schema, Table
from tracelens.what_if.replay.labels import Labels
from tracelens.what_if.replay.path import CATEGORIES, Path

MEASURED = "(measured)"
"""The row of what was recorded, beside those of scenarios."""

WHATIF = Schema(
    "Step time if something were otherwise",
    (
        Column("scenario", "str"),
        Column("base_ns", "int64", "ns", "of the step as measured, mean over the ranks"),
        Column("projected_ns", "int64", "ns", "of the step if the scenario held"),
        Column("low_ns", "int64", "ns", "the shortest of the recorded steps, each replayed so"),
        Column("high_ns", "int64", "ns", "the longest of them"),
        Column("gain", "float64", "ratio", "base / projected, less 1: how much more throughput"),
        Column("bottleneck", "category", doc="what most of the new critical path is"),
    ),
    doc="The run's own dependency graph (launches, streams, waits, collectives across ranks), replayed with "
    "other durations. Low to high holds all recorded steps, each with all, with typical and with none of the "
    "delays left that nothing in the trace explains; of N steps alike, one more lies between the shortest "
    "and the longest in (N-1)/(N+1) of cases. What the assumptions leave out, and how much one run differs "
    "from the next, is not in it.",
)
ASSUMPTIONS = Schema(
    "What the projections rest on",
    (
        Column("scenario", "str"),
        Column("change", "str", doc="what would be otherwise", prose=True),
        Column("assumption", "str", prose=True),
    ),
)
CRITICAL_PATH = Schema(
    "Critical path",
    (
        Column("scenario", "str", doc=f"{MEASURED} for the step as it was"),
        Column(
            "category",
            "category",
            doc="class of kernels, or: " + "; ".join(f"{name}: {doc}" for name, doc in CATEGORIES.items()),
        ),
        Column("dur_ns", "int64", "ns", "of the step on the rank that ends it last"),
        Column("fraction", "float64", "fraction", "of that step"),
        Column("delta_ns", "int64", "ns", "less what it was"),
    ),
    doc="First what each step waits for most, then what comes second, and so on. "
    + "; ".join(f"{name}: {doc}" for name, doc in CATEGORIES.items())
    + ".",
)
BOTTLENECKS = Schema(
    "What the critical path is made of",
    (
        Column("scenario", "str"),
        Column("rank", "int64"),
        Column("category", "category"),
        Column("name", "category", doc="kernel, op or collective; of host time the op that it led to"),
        Column("count", "int64", "count", "pieces of the path"),
        Column("dur_ns", "int64", "ns"),
        Column("fraction", "float64", "fraction", "of the step"),
    ),
    doc="By rank and name; first the largest part of each step, then the second, and so on: what to make "
    "shorter next.",
)
EXPLAINED = Schema(
    "How well the graph explains the step",
    (
        Column("replay", "str"),
        Column("base_ns", "int64", "ns"),
        Column("replayed_ns", "int64", "ns"),
        Column("error", "float64", "ratio", "replayed / base, less 1"),
        Column(
            "unexplained_fraction", "float64", "fraction", "of the critical path, delays without a reason"
        ),
        Column("meaning", "str", prose=True),
    ),
)
STEP_RANKS = Schema(
    "The step on each rank",
    (
        Column("scenario", "str"),
        Column("rank", "int64"),
        Column("base_ns", "int64", "ns"),
        Column("projected_ns", "int64", "ns"),
    ),
    detail=True,
)

_NAMES = 8


def by_place(schema: Schema, parts: Sequence[Mapping[str, Sequence[Any]]]) -> Table:
    """One table of several: the first row of each, then the second of each, and so on."""
    order = sorted(
        (place, number) for number, part in enumerate(parts) for place in range(len(part["scenario"]))
    )
    return schema.table(
        {name: [parts[number][name][place] for place, number in order] for name in schema.names}
    )


def path_rows(scenario: str, path: Path, before: Mapping[str, int]) -> dict[str, list[Any]]:
    """Rows of CRITICAL_PATH; `before` is what each category was as measured."""
    now, whole = path.by_category(), max(path.end - path.start, 1)
    names = [*now, *(name for name in before if name not in now)]
    return {
        "scenario": [scenario] * len(names),
        "category": names,
        "dur_ns": [now.get(name, 0) for name in names],
        "fraction": [now.get(name, 0) / whole for name in names],
        "delta_ns": [now.get(name, 0) - before.get(name, 0) for name in names],
    }


def bottleneck_rows(
    scenario: str, path: Path, names: Labels, ranks: Sequence[int], place: Int
) -> dict[str, list[Any]]:
    """Rows of BOTTLENECKS; `ranks[place[node]]` is the rank of a node."""
    found: dict[tuple[int, str, str], list[int]] = {}
    for piece in path.pieces:
        key = ranks[int(place[piece.node])], piece.category, names.name.values[names.name.codes[piece.node]]
        found.setdefault(key, []).append(piece.end - piece.start)
    most = sorted(found.items(), key=lambda item: -sum(item[1]))[:_NAMES]
    whole = max(path.end - path.start, 1)
    return {
        "scenario": [scenario] * len(most),
        "rank": [rank for (rank, _, _), _ in most],
        "category": [category for (_, category, _), _ in most],
        "name": [name for (_, _, name), _ in most],
        "count": [len(parts) for _, parts in most],
        "dur_ns": [sum(parts) for _, parts in most],
        "fraction": [sum(parts) / whole for _, parts in most],
    }

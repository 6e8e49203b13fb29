"""Both step times as one hierarchy: category, op, kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracelens.analysis.overview import NO_OP
from tracelens.arrays import lookup
from tracelens.compare.diff.cuts import IDLE
from tracelens.compare.diff.ledger import apportion
from tracelens.compare.diff.sides import Side
from tracelens.table import Column, Schema, codes

ICICLE = Schema(
    "Step time by category, op and kernel",
    (
        Column("node", "int64", doc="number of the row"),
        Column("parent", "int64", doc="node one level up, -1 at the top"),
        Column("level", "category", doc="category, op or kernel"),
        Column("name", "category", doc="category, op or kernel"),
        Column("base_ns", "int64", "ns", "per step"),
        Column("cand_ns", "int64", "ns", "per step"),
    ),
    kind="tree",
    doc="Parents before their children; the rows of each level add up to the step.",
    detail=True,
)


def icicle_rows(sides: Sequence[Sequence[Side]]) -> dict[str, Any]:
    """Columns of ICICLE; `sides` are the ranks of the base and of the candidate."""
    total: dict[tuple[str, str, str], list[float]] = {}
    for number, ranks in enumerate(sides):
        for side in ranks:
            for key, ns in _leaves(side):
                total.setdefault(key, [0.0, 0.0])[number] += ns / side.steps / len(ranks)
    keys = sorted(total)
    leaf_ns = [apportion(np.array([total[key][number] for key in keys])) for number in (0, 1)]
    rows: list[tuple[int, int, str, str, int, int]] = []
    sums: dict[tuple[str, ...], list[int]] = {}
    for leaf, key in enumerate(keys):
        for depth in (1, 2, 3):
            entry = sums.setdefault(key[:depth], [0, 0])
            entry[0] += int(leaf_ns[0][leaf])
            entry[1] += int(leaf_ns[1][leaf])
    node_of_path: dict[tuple[str, ...], int] = {(): -1}
    for path, (base, cand) in sums.items():
        node_of_path[path] = len(rows)
        level = ("category", "op", "kernel")[len(path) - 1]
        rows.append((len(rows), node_of_path[path[:-1]], level, path[-1], base, cand))
    columns = zip(*rows, strict=True) if rows else ([] for _ in ICICLE.names)
    return dict(zip(ICICLE.names, map(list, columns), strict=True))


def _leaves(side: Side) -> list[tuple[tuple[str, str, str], float]]:
    """((category, op, kernel), ns) of one rank, all steps together."""
    events, work = side.trace.arrays, side.work
    op = side.op[side.row]
    name = lookup(events.name, op, len(events.names))
    group, keys = codes(work.category[side.row], name, work.name[side.row])
    total = np.bincount(group, weights=side.ns, minlength=len(keys[0]))
    names = [*events.names, NO_OP]
    leaves = [
        ((work.categories[category], names[op_name], work.names[kernel]), ns)
        for category, op_name, kernel, ns in zip(*(key.tolist() for key in keys), total.tolist(), strict=True)
    ]
    return [*leaves, ((IDLE, IDLE, IDLE), float(side.idle.sum()))]

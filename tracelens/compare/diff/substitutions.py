"""Kernels side by side: what the same call runs in one run and in the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tracelens.arrays import Int
from tracelens.compare.diff.pairing import OTHER_KERNELS, RENAMED_CALLS, Pairing
from tracelens.compare.diff.sides import Side
from tracelens.table import Column, Schema

SUBSTITUTIONS = Schema(
    "Kernels side by side",
    (
        Column("op", "category", doc="of the base"),
        Column("base_kernel", "category", doc="that takes most of the call's time"),
        Column("cand_kernel", "category"),
        Column("base_ns", "int64", "ns", "of a step, all kernels of these calls"),
        Column("cand_ns", "int64", "ns", "the same calls in the candidate"),
        Column("delta_ns", "int64", "ns", "candidate - base"),
        Column("ratio", "float64", "ratio", "candidate / base"),
        Column("count", "float64", "count", "calls of a step"),
    ),
    doc="Calls with the same arguments that run other kernels: another library, another tile, another GPU.",
)


def substitution_rows(found: Sequence[tuple[Side, Side, Pairing]]) -> Iterator[dict[str, Any]]:
    """Rows of SUBSTITUTIONS, largest difference first.

    Args:
        found: ranks against each other.
    """
    total: dict[tuple[str, str, str], list[float]] = {}
    for base, cand, pairing in found:
        weight = 1 / len(found)
        chosen = np.isin(pairing.cause[0], (OTHER_KERNELS, RENAMED_CALLS))
        nodes, partners = _pairs(base.node[chosen], pairing.partner[0][chosen])
        mine, theirs = _by_node(base), _by_node(cand)
        for node, partner in zip(nodes.tolist(), partners.tolist(), strict=True):
            op = base.forest.names[base.forest.name[node]]
            key = (op, base.work.names[mine[0][node]], cand.work.names[theirs[0][partner]])
            entry = total.setdefault(key, [0.0, 0.0, 0.0])
            entry[0] += weight * float(mine[1][node]) / base.steps
            entry[1] += weight * float(theirs[1][partner]) / cand.steps
            entry[2] += weight / base.steps
    for (op, one, other), (base_ns, cand_ns, count) in sorted(
        total.items(), key=lambda item: -abs(item[1][1] - item[1][0])
    ):
        yield {
            "op": [op],
            "base_kernel": [one],
            "cand_kernel": [other],
            "base_ns": [round(base_ns)],
            "cand_ns": [round(cand_ns)],
            "delta_ns": [round(cand_ns) - round(base_ns)],
            "ratio": [cand_ns / base_ns if base_ns else -1.0],
            "count": [count],
        }


def _pairs(node: Int, partner: Int) -> tuple[Int, Int]:
    """Each node once, with its partner."""
    nodes, at = np.unique(node, return_index=True)
    return nodes, partner[at]


def _by_node(side: Side) -> tuple[Int, Int]:
    """Of each node, the name of its longest kernel and the time of all."""
    name = np.zeros(len(side.forest), dtype=np.int64)
    total = np.zeros(len(side.forest), dtype=np.int64)
    known = np.flatnonzero(side.node >= 0)
    known = known[np.argsort(side.ns[known], kind="stable")]
    name[side.node[known]] = side.work.name[side.row[known]]  # the last write stays: the longest
    np.add.at(total, side.node[known], side.ns[known])
    return name, total

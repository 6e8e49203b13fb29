"""Kernels side by side: what the same call launches in each run."""

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
        Column("op", "category", doc="op of the base that launches them"),
        Column("base_kernel", "category", doc="longest kernel of the call"),
        Column("cand_kernel", "category", doc="the same in the candidate"),
        Column("base_ns", "int64", "ns", "per step, all kernels of these calls"),
        Column("cand_ns", "int64", "ns", "the same calls in the candidate"),
        Column("delta_ns", "int64", "ns", "candidate - base"),
        Column("ratio", "float64", "ratio", "candidate / base"),
        Column("count", "float64", "count", "calls per step"),
    ),
    doc="Calls with equal arguments that launch different kernels: another library, tile or GPU.",
)


def substitution_rows(pairings: Sequence[tuple[Side, Side, Pairing]]) -> Iterator[dict[str, Any]]:
    """Rows of SUBSTITUTIONS over pairs of ranks, largest difference first."""
    total: dict[tuple[str, str, str], list[float]] = {}
    for base, cand, pairing in pairings:
        weight = 1 / len(pairings)
        replaced = np.isin(pairing.cause[0], (OTHER_KERNELS, RENAMED_CALLS))
        nodes, first = np.unique(base.node[replaced], return_index=True)
        partners = pairing.partner[0][replaced][first]
        (base_kernel_of, base_total), (cand_kernel_of, cand_total) = _by_node(base), _by_node(cand)
        for node, partner in zip(nodes.tolist(), partners.tolist(), strict=True):
            op = base.forest.names[base.forest.name[node]]
            key = (op, base.work.names[base_kernel_of[node]], cand.work.names[cand_kernel_of[partner]])
            entry = total.setdefault(key, [0.0, 0.0, 0.0])
            entry[0] += weight * float(base_total[node]) / base.steps
            entry[1] += weight * float(cand_total[partner]) / cand.steps
            entry[2] += weight / base.steps
    for (op, base_kernel, cand_kernel), (base_ns, cand_ns, count) in sorted(
        total.items(), key=lambda item: -abs(item[1][1] - item[1][0])
    ):
        yield {
            "op": [op],
            "base_kernel": [base_kernel],
            "cand_kernel": [cand_kernel],
            "base_ns": [round(base_ns)],
            "cand_ns": [round(cand_ns)],
            "delta_ns": [round(cand_ns) - round(base_ns)],
            "ratio": [cand_ns / base_ns if base_ns else -1.0],
            "count": [count],
        }


def _by_node(side: Side) -> tuple[Int, Int]:
    """The name of each node's longest kernel, and the time of all its kernels."""
    name = np.zeros(len(side.forest), dtype=np.int64)
    total = np.zeros(len(side.forest), dtype=np.int64)
    known = np.flatnonzero(side.node >= 0)
    known = known[np.argsort(side.ns[known], kind="stable")]
    name[side.node[known]] = side.work.name[side.row[known]]  # the last write stays: the longest
    np.add.at(total, side.node[known], side.ns[known])
    return name, total

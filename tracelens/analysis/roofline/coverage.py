"""How much of the GPU time has FLOPs and bytes from a cost model, and the names of what has none."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracelens.analysis.roofline.costing import Costing
from tracelens.analysis.roofline.reasons import NO_MODEL, REPEATED
from tracelens.arrays import Int, lookup
from tracelens.guard import Failure
from tracelens.table import RANK, Coded, Column, Schema, codes, sums
from tracelens.trace import Trace, Work

STATUSES = ("cost model", "cost model, arguments of a repeat", "reason given", "no cost model")
"""How a piece of work is counted or not. The first two are coverage; a reason is what the trace lacks, the
last is what tracelens lacks."""
MODELLED = 2
"""This many of STATUSES, the first ones, are counted."""

COVERAGE = Schema(
    "GPU time covered by cost models",
    (
        RANK,
        Column(
            "status", "category", doc="cost model: by its own arguments or by those of a repeat; or no cost"
        ),
        Column("dur_ns", "int64", "ns", "summed duration of this work"),
        Column("fraction", "float64", "fraction", "share of the summed duration of all GPU work"),
    ),
)

UNCOVERED = Schema(
    "GPU time without a cost, by name",
    (
        RANK,
        Column("name", "category", doc="op, or kernel without an op"),
        Column("reason", "category", doc="what the trace or tracelens lacks"),
        Column("count", "int64", "count", "kernels, copies and memsets"),
        Column("dur_ns", "int64", "ns", "summed duration of this work"),
        Column("fraction", "float64", "fraction", "share of the summed duration of all GPU work"),
    ),
    leading="dur_ns",
    descending=True,
)


def coverage(rank: int, work: Work, costs: Costing) -> dict[str, Any]:
    """Rows of COVERAGE for one rank: one for each of STATUSES, in its order."""
    total = sums(_status(costs), work.dur, len(STATUSES))
    return {
        "rank": np.full(len(STATUSES), rank),
        "status": list(STATUSES),
        "dur_ns": total,
        "fraction": total / max(int(total.sum()), 1),
    }


def uncovered(trace: Trace, work: Work, costs: Costing) -> dict[str, Any]:
    """Rows of UNCOVERED for one rank, longest time first."""
    rows = np.flatnonzero(costs.item < 0)
    names = trace.arrays.names
    op = work.op[rows]
    name = lookup(trace.arrays.name, op, work.name[rows]).astype(np.int64)
    group, (label, reason) = codes(name, costs.reason[rows])
    dur = sums(group, work.dur[rows], len(label))
    order = np.argsort(-dur, kind="stable")
    return {
        "rank": np.full(len(order), trace.meta.rank),
        "name": Coded.used(label[order], names),
        "reason": Coded.used(reason[order], costs.reasons),
        "count": np.bincount(group, minlength=len(label))[order],
        "dur_ns": dur[order],
        "fraction": dur[order] / max(int(work.dur.sum()), 1),
    }


def _status(costs: Costing) -> Int:
    """Code into STATUSES of each piece of work."""
    by_item = [STATUSES[1] if REPEATED in item.note else STATUSES[0] for item in costs.items]
    holes = [reason == NO_MODEL or isinstance(reason, Failure) for reason in costs.reasons]
    by_reason = [STATUSES[3] if hole else STATUSES[2] for hole in holes]
    code = np.array([STATUSES.index(how) for how in (*by_item, *by_reason)], dtype=np.int64)
    return code[np.where(costs.item >= 0, costs.item, len(by_item) + costs.reason)]

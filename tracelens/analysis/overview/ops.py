"""CPU ops by name, with the GPU time of the kernels they launch."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracelens.analysis.analyzer import analyzer
from tracelens.analysis.common import call_time
from tracelens.arrays import Int
from tracelens.table import (
    RANK,
    Coded,
    Column,
    Result,
    Schema,
    Skip,
    codes,
    outermost,
    result,
    stats,
    subtree_sums,
    sums,
)
from tracelens.trace import WORK_KINDS, Run, Scope, Trace, Work, gpu_work

OPS = Schema(
    "Ops by name",
    (
        RANK,
        Column("name", "category", doc="op"),
        Column("category", "category", doc="kernel class with most of its time"),
        Column("count", "int64", "count", "calls that launched GPU work themselves"),
        Column("dur_ns", "int64", "ns", "GPU time of work launched by the op itself; union per call"),
        Column("subtree_dur_ns", "int64", "ns", "including called ops"),
        Column("mean_ns", "float64", "ns", "of dur_ns per call", intensive=True),
        Column("median_ns", "float64", "ns", "of dur_ns per call", intensive=True),
        Column("min_ns", "int64", "ns", "of dur_ns per call", intensive=True),
        Column("max_ns", "int64", "ns", "of dur_ns per call", intensive=True),
        Column("fraction", "float64", "fraction", "share of the summed duration of all GPU work"),
    ),
    doc="GPU work belongs to the innermost op around its launch call.",
    key=("name",),
    leading="dur_ns",
    descending=True,
)


@analyzer("ops", title="Ops", order=40, tables={"ops": OPS})
def ops(run: Run, *, scope: Scope = "all") -> Result:
    """Which framework ops take the GPU time?

    Reading:
        `dur_ns` is GPU time that the op launches itself, `subtree_dur_ns` includes the ops that it calls.

    Limits:
        GPU work whose launch call is not in the trace belongs to no op and is in no row.

    Args:
        run: the ranks.
        scope: "all", or "linked" for work whose launch call is in the trace, without communication
            (which is what AMD's TraceLens reports).

    Returns:
        table `ops`, one row a rank and op name that launches GPU work, largest dur_ns first.
    """
    parts, skips = [], []
    for trace in run.traces:
        work = gpu_work(trace, scope)
        if scope == "linked":
            work = work.take(work.kind != WORK_KINDS.index("comm"))
        with_op = work.take(work.op >= 0)
        if len(with_op.event):
            parts.append(_ops(trace, with_op, max(int(work.dur.sum()), 1)))
            without_op_ns = int(work.dur.sum() - with_op.dur.sum())
            if without_op_ns:
                skips.append(
                    Skip(
                        f"rank {trace.meta.rank}: {without_op_ns:,} ns of GPU work", "no op around its launch"
                    )
                )
        else:
            skips.append(
                Skip(f"rank {trace.meta.rank}", "no GPU work linked to an op; record ProfilerActivity.CPU")
            )
    return result({"ops": OPS.concat(parts)}, skips, scope=scope)


def _ops(trace: Trace, work: Work, total: int) -> dict[str, Any]:
    events = trace.arrays
    call, dur = call_time(work, work.op)
    direct = np.zeros(len(events.start), dtype=np.int64)
    direct[call] = dur
    subtree = subtree_sums(events.parent, events.depth, direct)
    names = events.name[call]
    group, (name,) = codes(names)
    by_name = stats(group, dur, len(name))
    # A call inside a call of the same op is part of that one's subtree.
    outer = outermost(events.parent, call, group)
    category = _main_category(work, group, call, len(name))
    order = np.argsort(-by_name.total, kind="stable")
    return {
        "rank": np.full(len(order), trace.meta.rank),
        "name": Coded.used(name[order], events.names),
        "category": Coded.used(category[order], work.categories),
        "count": by_name.number[order],
        "dur_ns": by_name.total[order],
        "subtree_dur_ns": sums(group[outer], subtree[call[outer]], len(name))[order],
        "mean_ns": by_name.mean[order],
        "median_ns": by_name.median[order],
        "min_ns": by_name.min[order],
        "max_ns": by_name.max[order],
        "fraction": by_name.total[order] / total,
    }


def _main_category(work: Work, group_of_call: Int, call: Int, groups: int) -> Int:
    """Category with most time in each group of calls."""
    group = group_of_call[np.searchsorted(call, work.op)]
    pair, (owner, category) = codes(group, work.category.astype(np.int64))
    time = sums(pair, work.dur, len(owner))
    best = np.zeros(groups, dtype=np.int64)
    order = np.lexsort((time, owner))
    best[owner[order]] = category[order]
    return best

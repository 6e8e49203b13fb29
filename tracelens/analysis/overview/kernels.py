"""GPU kernels by name."""

from __future__ import annotations

import numpy as np

from tracelens.analysis.analyzer import analyzer
from tracelens.table import Column, Result, Schema, Skip, codes, result, stack, stats, used
from tracelens.trace import Run, Scope, gpu_work

KERNELS = Schema(
    "Kernels by name",
    (
        Column("rank", "int64"),
        Column("name", "category"),
        Column("category", "category", doc="kernel class"),
        Column("count", "int64", "count"),
        Column("sum_ns", "int64", "ns", "sum of durations; kernels on several streams may overlap"),
        Column("mean_ns", "float64", "ns"),
        Column("median_ns", "float64", "ns"),
        Column("min_ns", "int64", "ns"),
        Column("max_ns", "int64", "ns"),
        Column("fraction", "float64", "fraction", "of the summed time of all kernels"),
    ),
)


@analyzer("kernels", title="Kernels", order=50)
def kernels(run: Run, *, scope: Scope = "all") -> Result:
    """Which kernels take the GPU time?

    Copies and fills done by the copy engines are no kernels and are left out (see timeline).

    Args:
        run: the ranks.
        scope: "all", or "linked" for kernels whose launch call is in the trace.

    Returns:
        table `kernels`, one row a rank and kernel name, largest sum first.
    """
    parts, skips = [], []
    for trace in run.traces:
        work = gpu_work(trace, scope)
        work = work.take(work.is_kernel)
        if not len(work.event):
            skips.append(Skip(f"rank {trace.meta.rank}", "no kernels in the trace"))
            continue
        # One name can have two classes where the launching op decided; each is a row.
        group, (name, category) = codes(work.name, work.category)
        found = stats(group, work.dur, len(name))
        order = np.argsort(-found.total, kind="stable")
        parts.append(
            {
                "rank": np.full(len(order), trace.meta.rank),
                "name": used(work.names, name[order]),
                "category": used(work.categories, category[order]),
                "count": found.number[order],
                "sum_ns": found.total[order],
                "mean_ns": found.mean[order],
                "median_ns": found.median[order],
                "min_ns": found.min[order],
                "max_ns": found.max[order],
                "fraction": found.total[order] / max(int(found.total.sum()), 1),
            }
        )
    return result({"kernels": stack(KERNELS, parts)}, skips, scope=scope)

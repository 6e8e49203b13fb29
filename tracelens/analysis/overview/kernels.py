"""GPU kernels by name."""

from __future__ import annotations

import numpy as np

from tracelens.analysis.analyzer import analyzer
from tracelens.table import RANK, Coded, Column, Result, Schema, Skip, codes, result, stats
from tracelens.trace import Run, Scope, gpu_work

KERNELS = Schema(
    "Kernels by name",
    (
        RANK,
        Column("name", "category", doc="kernel"),
        Column("category", "category", doc="kernel class"),
        Column("count", "int64", "count", "calls"),
        Column("sum_ns", "int64", "ns", "sum of durations; kernels on several streams may overlap"),
        Column("mean_ns", "float64", "ns", "mean duration", intensive=True),
        Column("median_ns", "float64", "ns", "median duration", intensive=True),
        Column("min_ns", "int64", "ns", "shortest call", intensive=True),
        Column("max_ns", "int64", "ns", "longest call", intensive=True),
        Column("fraction", "float64", "fraction", "share of the summed time of all kernels"),
    ),
    leading="sum_ns",
    descending=True,
)


@analyzer("kernels", title="Kernels", order=50, tables={"kernels": KERNELS})
def kernels(run: Run, *, scope: Scope = "all") -> Result:
    """Which kernels take the GPU time?

    Copies and memsets by the copy engines are not kernels and are left out (see timeline).

    Reading:
        Largest sum first. A `max_ns` far above `median_ns` is worth a look: other shapes, or a disturbance.

    Limits:
        `sum_ns` adds durations, so kernels that overlap count twice; see `breakdown` for wall time.

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
        by_name = stats(group, work.dur, len(name))
        order = np.argsort(-by_name.total, kind="stable")
        parts.append(
            {
                "rank": np.full(len(order), trace.meta.rank),
                "name": Coded.used(name[order], work.names),
                "category": Coded.used(category[order], work.categories),
                "count": by_name.number[order],
                "sum_ns": by_name.total[order],
                "mean_ns": by_name.mean[order],
                "median_ns": by_name.median[order],
                "min_ns": by_name.min[order],
                "max_ns": by_name.max[order],
                "fraction": by_name.total[order] / max(int(by_name.total.sum()), 1),
            }
        )
    return result({"kernels": KERNELS.concat(parts)}, skips, scope=scope)

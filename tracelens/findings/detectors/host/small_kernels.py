"""Kernels so short that starting them costs about as much as running them."""

from __future__ import annotations

import numpy as np

from tracelens.findings.detectors.detector import Detection, Outcome, Quantity, detector
from tracelens.findings.rank_context import RankContext
from tracelens.trace import union
from tracelens.trace.graphs import launched_by_graph

SMALL_NS = 10_000
# Below this share of the launches they are the odd reduction and counter, as every program has them.
_MANY = 0.5


@detector(
    "small_kernels",
    title="Many small kernels",
    launching=True,
    symptom=True,
    measures={
        "share of launches": "kernels under 10 us, by number",
        "share of kernel time": "the same, by duration",
        "kernels per step": "all kernels",
    },
    threshold=f"over {_MANY:.0%} of the kernels are under {SMALL_NS // 1000} us",
    limits="The saving is the gaps before them; the kernels stay.",
)
def small_kernels(context: RankContext) -> Outcome:
    """More than half of all kernels are shorter than 10 us."""
    work = context.work.take(context.work.is_kernel)
    if not len(work.event):
        return "no kernels"
    small = work.dur < SMALL_NS
    share = float(small.mean())
    if share <= _MANY:
        return f"{share:.0%} of the kernels are shorter than {SMALL_NS // 1000} us"
    # The gap in front of a small kernel is what its launch costs; the kernel itself has to run anyway.
    gaps = context.busy.gaps()
    order = np.argsort(work.start, kind="stable")
    next_kernel = np.searchsorted(work.start[order], gaps.end)
    next_kernel = np.minimum(next_kernel, len(order) - 1)
    next_kernel = order[next_kernel]
    lost = small[next_kernel] & (gaps.end - gaps.start < SMALL_NS)
    in_graphs = float(launched_by_graph(context.trace, work)[small].mean())
    where = union(gaps.start[lost], gaps.end[lost])
    time = float(work.dur[small].sum() / max(int(work.dur.sum()), 1))
    return Detection(
        (
            Quantity("share of launches", share, "fraction"),
            Quantity("share of kernel time", time, "fraction"),
            Quantity("kernels per step", context.per_step(len(work.event)), "count"),
        ),
        context.per_step(where.total),
        where,
        f"{share:.0%} of {context.per_step(len(work.event)):,.0f} kernels per step are shorter than "
        f"{SMALL_NS // 1000} us ({time:.0%} of kernel time)"
        + (f", {in_graphs:.0%} of them in graphs" if in_graphs else "")
        + "; the saving is the gaps before them",
        "medium",
        in_graphs=in_graphs > _MANY,
    )

"""Activation checkpointing: the backward pass recomputes the forward pass."""

from __future__ import annotations

import numpy as np

from tracelens.analysis.common import NODE, recomputed
from tracelens.arrays import Bool, Int, lookup
from tracelens.findings.detectors.detector import Detection, Outcome, Quantity, detector
from tracelens.findings.rank_context import RankContext
from tracelens.table import codes, nearest, sums
from tracelens.trace import difference
from tracelens.units import duration

_SHOWN = 3


@detector(
    "recompute",
    scenario="no_recompute",
    title="Activations are recomputed",
    measures={
        "recompute": "time of recomputed kernels, per step",
        "share of the step": "the same / step time",
        "recomputing backward nodes per step": "nodes of the autograd graph that recompute",
        "recomputed kernels per step": "kernels that repeat forward work",
        "recomputed: CLASS": "time by kernel class, the largest, per step",
    },
    threshold="one recomputed kernel",
    limits="The trace does not show whether there is memory to keep the activations instead.",
)
def recompute(context: RankContext) -> Outcome:
    """Forward ops are recomputed in the backward pass."""
    if not len(context.work.event):
        return "no GPU work"
    is_recompute = _recomputed_work(context)
    if not is_recompute.any():
        return "the backward pass recomputes nothing"
    during = context.during(is_recompute)
    where = difference(during, context.during(~is_recompute))
    families = _families(context, is_recompute)
    regions = context.per_step(_regions(context, is_recompute))
    share = during.total / max(context.window[1] - context.window[0], 1)
    shown = ", ".join(f"{name} {duration(total)}" for name, total in families)
    return Detection(
        (
            Quantity("recompute", context.per_step(during.total), "ns"),
            Quantity("share of the step", min(share, 1.0), "fraction"),
            Quantity("recomputing backward nodes per step", regions, "count"),
            Quantity("recomputed kernels per step", context.per_step(int(is_recompute.sum())), "count"),
            *(Quantity(f"recomputed: {name}", total, "ns") for name, total in families),
        ),
        context.per_step(where.total),
        where,
        f"{duration(context.per_step(during.total))} per step ({share:.1%}) goes to recompute in "
        f"{regions:.0f} regions, mostly {shown}; {duration(context.per_step(where.total))} is not "
        "overlapped. The trace does not show whether there is memory to keep the activations instead",
        "low",
    )


def _recomputed_work(context: RankContext) -> Bool:
    """Which work repeats the forward pass."""
    mask: Bool = lookup(context.trace.once(recomputed), context.caller, False)
    return mask


def _families(context: RankContext, is_recompute: Bool) -> list[tuple[str, float]]:
    """Classes of the repeated kernels with the most time, and that time per step, ns."""
    group, (category,) = codes(context.work.category[is_recompute])
    total = sums(group, context.work.dur[is_recompute], len(category))
    order = np.argsort(-total, kind="stable")[:_SHOWN]
    return [(context.work.categories[category[row]], context.per_step(int(total[row]))) for row in order]


def _regions(context: RankContext, is_recompute: Bool) -> int:
    """Number of nodes of the backward pass that repeat something."""
    events = context.trace.arrays
    node = events.named(lambda name: name.startswith(NODE))
    around: Int = nearest(events.parent, events.depth, node)[context.caller[is_recompute]]
    return len(np.unique(around))

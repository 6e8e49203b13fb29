"""Activation checkpointing: the forward pass runs again during the backward pass."""

from __future__ import annotations

import numpy as np

from tracelens.analysis.common import NODE, recomputed
from tracelens.analysis.stragglers import duration
from tracelens.arrays import Bool, Int
from tracelens.findings.detectors.detector import Detection, Found, Quantity, detector
from tracelens.findings.rank_context import RankContext
from tracelens.table import codes, nearest, sums
from tracelens.trace import difference

_SHOWN = 3


@detector(
    "recompute",
    title="Activations are recomputed",
    remedy="Recompute less: only what is cheap to redo and large to keep (selective recompute of attention "
    "or MoE activations; Megatron: --recompute-granularity selective with --recompute-modules), or only as "
    "many layers as memory asks for (Primus: --recompute_layer_ids, with RECOMPUTE_LAYERS at 0). Larger "
    "expert or pipeline parallelism, or less memory for the loss, make room for it.",
)
def recompute(scene: RankContext) -> Found:
    """Ops of the forward pass run once more inside of the backward pass."""
    if not len(scene.work.event):
        return "no GPU work"
    again = _again(scene)
    if not again.any():
        return "nothing in the backward pass runs the forward pass again"
    during = scene.during(again)
    where = difference(during, scene.during(~again))
    families = _families(scene, again)
    regions = scene.per_step(_regions(scene, again))
    share = during.total / max(scene.window[1] - scene.window[0], 1)
    shown = ", ".join(f"{name} {duration(total)}" for name, total in families)
    return Detection(
        (
            Quantity("recompute", scene.per_step(during.total), "ns"),
            Quantity("share of the step", min(share, 1.0), "fraction"),
            Quantity("backward nodes that recompute, a step", regions, "count"),
            Quantity("kernels run again, a step", scene.per_step(int(again.sum())), "count"),
            *(Quantity(f"recomputed: {name}", total, "ns") for name, total in families),
        ),
        scene.per_step(where.total),
        where,
        f"{duration(scene.per_step(during.total))} a step ({share:.1%}) repeat the forward pass in "
        f"{regions:.0f} places, most of it {shown}; {duration(scene.per_step(where.total))} of that run "
        "beside nothing else. How much of it memory allows to keep, the trace does not say",
        "low",
    )


def _again(scene: RankContext) -> Bool:
    """Which work repeats the forward pass."""
    mask: Bool = (scene.caller >= 0) & scene.trace.once(recomputed)[np.maximum(scene.caller, 0)]
    return mask


def _families(scene: RankContext, again: Bool) -> list[tuple[str, float]]:
    """Classes of the repeated kernels with the most time, and that time per step, ns."""
    group, (category,) = codes(scene.work.category[again])
    total = sums(group, scene.work.dur[again], len(category))
    order = np.argsort(-total, kind="stable")[:_SHOWN]
    return [(scene.work.categories[category[at]], scene.per_step(int(total[at]))) for at in order]


def _regions(scene: RankContext, again: Bool) -> int:
    """Number of nodes of the backward pass that repeat something."""
    events = scene.trace.arrays
    node = np.array([name.startswith(NODE) for name in events.names], dtype=bool)[events.name]
    around: Int = nearest(events.parent, events.depth, node)[scene.caller[again]]
    return len(np.unique(around))

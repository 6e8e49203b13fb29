"""Detector `elementwise`: GPU time in kernels that only stream data."""

import numpy as np

from tracelens.findings import Detection, Quantity, RankContext, detector

CLASSES = ("elementwise", "activation")
LEAST = 0.05  # share of the step below which nobody would fuse anything


@detector(
    "elementwise",
    title="Elementwise kernels take much of the step",
    scenario="scale:elementwise=0.5+scale:activation=0.5",
    remedy="Fuse them: torch.compile, or fused modules for norms and activations.",
    measures={"elementwise kernels": "per step", "time": "per step, overlaps once"},
    threshold="5% of the step",
    limits="It takes for granted that fusing halves their time.",
)
def elementwise(context: RankContext) -> Detection | str:
    """Elementwise kernels take at least 5% of the step."""
    work = context.work
    chosen = np.isin(work.category, [work.categories.index(name) for name in CLASSES])
    where = context.during(chosen)
    count = context.per_step(int(chosen.sum()))
    time_ns = context.per_step(where.total)
    share = time_ns / context.step_ns
    if share < LEAST:
        return f"elementwise kernels take {share:.1%} of the step"
    return Detection(
        quantities=(
            Quantity("elementwise kernels", count, "count"),
            Quantity("time", time_ns, "ns"),
        ),
        saving_ns=time_ns / 2,  # an estimate; the replay of the scenario decides
        where=where,
        evidence=f"{count:.0f} kernels take {time_ns / 1e6:.1f} ms/step ({share:.0%})",
        confidence="low",
    )

"""Ranks whose experts have more to do than those of the others."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tracelens.findings.detectors.detector import Detection, Quantity, detector
from tracelens.findings.step_counts import in_steps, step_count
from tracelens.table import Result
from tracelens.trace import union

_EVEN = 1.02
"""Kernels of equal work differ by as much."""


@detector(
    "token_imbalance",
    title="Tokens are spread unevenly over ranks",
    remedy="Balance the routing: auxiliary loss or bias-corrected router, expert placement by load (EPLB), "
    "redundant copies of busy experts, or a capacity limit; --moe_router_force_load_balancing shows what it "
    "would give.",
    needs=("collectives", "moe"),
)
def token_imbalance(results: Mapping[str, Result]) -> Mapping[int, Detection] | str:
    """The experts of one rank take longer than those of the ranks that it exchanges tokens with."""
    found = results["moe"]
    balance = found.data["balance"]
    if not len(balance):
        return "no ranks that exchange tokens"
    ratio = balance.array("max_mean_ratio")
    worst = int(np.argmax(ratio))
    waits = found.data["waits"]
    counted = in_steps(waits)
    if not counted.any() or 0 <= float(ratio.max()) < _EVEN:
        return f"even: the largest rank has {float(ratio.max()):.0%} of the mean"
    steps = step_count(results)
    rank, start, dur = (waits.array(name)[counted] for name in ("rank", "ts_ns", "dur_ns"))
    signals = {}
    for one in np.unique(rank).tolist():
        mine = rank == one
        where = union(start[mine], start[mine] + dur[mine])
        lost = float(dur[mine].sum()) / steps
        if ratio[worst] < 0:
            signals[one] = Detection(
                (Quantity("waiting for slower experts, a step", lost, "ns"),),
                lost,
                where,
                f"this rank's experts are done {lost / 1e6:,.2f} ms of a step before the slowest; the trace "
                "does not say how many rows they compute",
                "low",
            )
            continue
        signals[one] = Detection(
            (
                Quantity("largest rank against the mean, worst layer", float(ratio[worst]), "ratio"),
                Quantity("waiting for slower experts, a step", lost, "ns"),
            ),
            lost,
            where,
            f"in MoE layer {balance.array('layer')[worst]} the rank with most tokens (mostly rank "
            f"{balance.array('worst_rank')[worst]}) computes {balance.array('tokens_max')[worst]:,.0f} rows "
            f"where the mean is {balance.array('tokens_mean')[worst]:,.0f} ({ratio[worst]:.0%}); this rank's "
            f"experts are done {lost / 1e6:,.2f} ms of a step before the slowest",
            "medium",
        )
    return signals

"""Expert-parallel ranks with uneven load."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tracelens.findings.detectors.detector import Detection, Quantity, detector
from tracelens.findings.step_counts import in_steps, step_count
from tracelens.table import Result
from tracelens.trace import union
from tracelens.units import milliseconds

_EVEN = 1.02
"""Kernels of equal work differ by as much."""


@detector(
    "token_imbalance",
    scenario="balanced",
    title="Tokens are spread unevenly over ranks",
    needs=("collectives", "moe"),
    measures={
        "busiest rank / mean, worst layer": "rows for the busiest rank's experts / mean over ranks",
        "waiting for slower experts per step": "from the end of its own experts to that of the slowest",
    },
    threshold=f"{_EVEN:.0%} of the mean on the busiest rank of a layer",
    limits="Needs all ranks of the expert-parallel group.",
)
def token_imbalance(results: Mapping[str, Result]) -> Mapping[int, Detection] | str:
    """The experts of one rank take longer than those of the others in its expert-parallel group."""
    moe = results["moe"]
    balance = moe.data["balance"]
    if not len(balance):
        return "no expert-parallel ranks"
    ratio = balance.array("max_mean_ratio")
    worst = int(np.argmax(ratio))
    waits = moe.data["waits"]
    counted = in_steps(waits)
    if not counted.any() or 0 <= float(ratio.max()) < _EVEN:
        return f"balanced: the busiest rank has {float(ratio.max()):.0%} of the mean"
    steps = step_count(results)
    rank, start, dur = (waits.array(name)[counted] for name in ("rank", "ts_ns", "dur_ns"))
    detections = {}
    for waiting_rank in np.unique(rank).tolist():
        of_rank = rank == waiting_rank
        where = union(start[of_rank], start[of_rank] + dur[of_rank])
        lost = float(dur[of_rank].sum()) / steps
        if ratio[worst] < 0:
            detections[waiting_rank] = Detection(
                (Quantity("waiting for slower experts per step", lost, "ns"),),
                lost,
                where,
                f"this rank's experts finish {milliseconds(lost)}/step before the slowest; their row counts "
                "are not recorded",
                "low",
            )
            continue
        detections[waiting_rank] = Detection(
            (
                Quantity("busiest rank / mean, worst layer", float(ratio[worst]), "ratio"),
                Quantity("waiting for slower experts per step", lost, "ns"),
            ),
            lost,
            where,
            f"in MoE layer {balance.array('layer')[worst]} the busiest rank (mostly rank "
            f"{balance.array('worst_rank')[worst]}) computes {balance.array('tokens_max')[worst]:,.0f} rows "
            f"against a mean of {balance.array('tokens_mean')[worst]:,.0f} ({ratio[worst]:.0%}); this rank's "
            f"experts finish {milliseconds(lost)}/step before the slowest",
            "medium",
        )
    return detections

"""Sharded data parallelism: parameters that are gathered more often than they need be."""

from __future__ import annotations

import numpy as np

from tracelens.analysis.comm import regathers
from tracelens.findings.detectors.detector import Detection, Outcome, Quantity, RankContext, detector
from tracelens.trace import WORK_KINDS, difference


@detector(
    "parameters_regathered",
    evidence="overlap",
    scenario="keep_parameters",
    title="Parameters are gathered again for the backward pass",
    remedy="Keep parameters gathered between the passes where memory allows: fully_shard(module, "
    "reshard_after_forward=False), for some modules if not for all; for the last one in any case. FSDP1: "
    "ShardingStrategy.SHARD_GRAD_OP.",
    measures={
        "gathers again per step": "all-gathers of modules gathered before in the step, waiting included",
        "exposed per step": "part of it without computation",
    },
    threshold="one module gathered twice in a step",
    limits="Reads the marks of FSDP2. The parameters of all modules must fit into memory together.",
)
def parameters_regathered(context: RankContext) -> Outcome:
    """FSDP frees the parameters of a module after its forward pass and gathers them again."""
    again = np.isin(context.rows, context.trace.once(regathers).rows)
    gathers = again & (context.work.kind == WORK_KINDS.index("comm"))
    if not gathers.any():
        return "no module whose parameters are gathered twice in a step by FSDP2"
    gathering = context.during(gathers)
    exposed = difference(gathering, context.work.union("computation"))
    return Detection(
        (
            Quantity("gathers again per step", context.per_step(gathering.total), "ns"),
            Quantity("exposed per step", context.per_step(exposed.total), "ns"),
        ),
        context.per_step(exposed.total),
        gathering,
        f"{context.per_step(gathering.total) / 1e6:,.1f} ms/step of all-gathers repeat those of the forward "
        f"pass; {context.per_step(exposed.total) / 1e6:,.1f} ms/step of them are exposed",
        "medium",
    )

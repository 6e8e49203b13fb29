"""A message of a step, and the process groups of the workload."""

from __future__ import annotations

from typing import Literal, NamedTuple

from tracelens.planner.block import Collective
from tracelens.planner.config import Layout

Phase = Literal["forward", "backward", "recompute", "step"]


class Message(NamedTuple):
    """One collective, or one send or receive, from the view of one rank.

    Attributes:
        scope: innermost annotation around it in the trace; ends in `.B` for a gradient.
        phase: "step" for once per step.
        micro_batch: -1 for once per step.
        what: the payload.
        collective: its kind.
        group: name of its process group.
        ranks: size of that group.
        sent: bytes of the send buffer.
        received: bytes of the receive buffer.
    """

    scope: str
    phase: Phase
    micro_batch: int
    what: str
    collective: Collective
    group: str
    ranks: int
    sent: int
    received: int


REPLICA_GROUPS = {"stage": "dp_cp_tp", "dense": "dp_cp", "edp": "edp"}
"""Parameters (unsharded, sharded by tensor parallelism, experts) to the process group of their replicas."""


def group_ranks(layout: Layout, group: str) -> int:
    """Size of the process groups of this name, which lists their dimensions."""
    sizes = {
        "pp": layout.pp,
        "tp": layout.tp,
        "cp": layout.cp,
        "ep": layout.experts_over,
        "edp": layout.stage_ranks // layout.experts_over,
        "cp_tp": layout.cp * layout.tp,
        "dp_cp": layout.dp * layout.cp,
        "dp_cp_tp": layout.stage_ranks,
    }
    return sizes[group]

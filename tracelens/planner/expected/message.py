"""A message of a step, and the groups of ranks that it may go to."""

from __future__ import annotations

from typing import Literal, NamedTuple

from tracelens.planner.config import Layout

Collective = Literal[
    "all_to_all", "all_gather", "reduce_scatter", "all_reduce", "broadcast", "send", "recv", "deepep"
]
Phase = Literal["forward", "backward", "recompute", "step"]


class Message(NamedTuple):
    """One collective, or one send or receive, as a rank takes part in it.

    Attributes:
        scope: innermost scope of the trace that it stands in; of a gradient it ends in `.B`.
        phase: "step" for what is done once a step.
        micro_batch: number, -1 once a step.
        what: is exchanged.
        collective: how.
        group: name of its process group.
        ranks: in that group.
        sent: bytes of the buffer that the rank gives.
        received: bytes of the buffer that it gets.
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


def group_ranks(layout: Layout, group: str) -> int:
    """Ranks in the groups of a name, that of their dimensions."""
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

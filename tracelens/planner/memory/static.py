"""What a rank holds between steps: parameters, gradients, main copies and the optimizer's numbers."""

from __future__ import annotations

from typing import NamedTuple

from tracelens.planner.config import Config
from tracelens.planner.expected import Share, buffer_bytes, group_ranks
from tracelens.planner.memory.assumptions import STATES, Assumptions
from tracelens.planner.memory.sizes import FLOAT32
from tracelens.planner.memory.tape import Held

GROUPS = {"stage": "dp_cp_tp", "dense": "dp_cp", "edp": "edp"}
"""Process group of the ranks that hold the same parameters."""


class Static(NamedTuple):
    """What is there between steps, and what the optimizer's step needs besides.

    Attributes:
        held: bytes by component; buffers are filled up to equal, aligned shares, which is counted.
        step: bytes of the gradients of a share once more in float32.
    """

    held: Held
    step: int


def static(config: Config, rank: int, assumptions: Assumptions) -> Static:
    """Of one rank; ZeRO stage 1 (arXiv:1910.02054): optimizer and main copies are shared out.

    Args:
        config: of the run.
        rank: number of the rank.
        assumptions: optimizer, precision and sharding.
    """
    share = Share(config, rank)
    a = share.element
    copied = config.training.main_params and config.training.dtype == "bfloat16"
    elements = shared = 0
    for replicas, size in buffer_bytes(share).items():
        ranks = group_ranks(config.layout, GROUPS[replicas]) if assumptions.sharding == "replicas" else 1
        elements += size // a
        shared += size // a // ranks
    wide = assumptions.gradients == "float32"
    state = FLOAT32 if copied else a
    held = {
        "parameters": elements * a,
        "gradients": elements * (FLOAT32 if wide else a),
        "main_parameters": shared * FLOAT32 if copied else 0,
        "optimizer": shared * state * STATES[assumptions.optimizer],
    }
    return Static(held, shared * FLOAT32 if copied and not wide else 0)

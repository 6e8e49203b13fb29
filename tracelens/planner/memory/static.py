"""Model state of a rank: parameters, gradients, main parameters and optimizer states."""

from __future__ import annotations

from typing import NamedTuple

from tracelens.planner.block import Held
from tracelens.planner.config import Config
from tracelens.planner.expected import FLOAT32, REPLICA_GROUPS, Share, buffer_bytes, group_ranks
from tracelens.planner.memory.assumptions import STATES, Assumptions


class Static(NamedTuple):
    """Memory between steps, and what the optimizer step adds.

    Attributes:
        held: bytes by component, including the padding to equal aligned shards.
        step: bytes of the float32 copy of a shard's gradients.
    """

    held: Held
    step: int


def static(config: Config, rank: int, assumptions: Assumptions) -> Static:
    """Model state of one rank with ZeRO stage 1 (arXiv:1910.02054): optimizer and main copies are sharded."""
    share = Share(config, rank)
    a = share.element
    has_main_params = config.training.main_params and config.training.dtype == "bfloat16"
    elements = sharded = 0
    for replicas, size in buffer_bytes(share).items():
        ranks = (
            group_ranks(config.layout, REPLICA_GROUPS[replicas]) if assumptions.sharding == "replicas" else 1
        )
        elements += size // a
        sharded += size // a // ranks
    wide = assumptions.wide_gradients
    narrow = 2 if has_main_params else a
    state = FLOAT32 if has_main_params and assumptions.states == "float32" else narrow
    main = FLOAT32 if assumptions.main == "float32" else narrow
    held = {
        "parameters": elements * a,
        "gradients": elements * (FLOAT32 if wide else a),
        "main_parameters": sharded * main if has_main_params else 0,
        "optimizer": sharded * state * STATES[assumptions.optimizer],
    }
    return Static(held, sharded * FLOAT32 if has_main_params and not wide else 0)

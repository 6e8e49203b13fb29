"""Work that a fused kernel could do, or that could overlap: losses, routers, GEMMs beside collectives."""

from tracelens.analysis.fusable.chains import Chains
from tracelens.analysis.fusable.gemm_collectives import Pairs, exposed_pairs, pairs, speed_of_light
from tracelens.analysis.fusable.logits import (
    COPY,
    LOSSES,
    NLL_BACK,
    PARALLEL,
    SOFTMAX,
    SOFTMAX_BACK,
    VOCABULARY,
    LossWork,
    Size,
    distinct,
    events_named,
    of_size,
    operands,
    sizes_of,
    width,
)
from tracelens.analysis.fusable.loss import UnfusedLoss, loss_chains, unfused_loss
from tracelens.analysis.fusable.moe_stages import (
    CHAIN,
    StageWork,
    permutation_bytes,
    permutation_chains,
    permutation_work,
    router_chains,
    router_work,
)
from tracelens.analysis.fusable.step_work import StepWork

__all__ = [
    "CHAIN",
    "COPY",
    "LOSSES",
    "NLL_BACK",
    "PARALLEL",
    "SOFTMAX",
    "SOFTMAX_BACK",
    "VOCABULARY",
    "Chains",
    "LossWork",
    "Pairs",
    "Size",
    "StageWork",
    "StepWork",
    "UnfusedLoss",
    "distinct",
    "events_named",
    "exposed_pairs",
    "loss_chains",
    "of_size",
    "operands",
    "pairs",
    "permutation_bytes",
    "permutation_chains",
    "permutation_work",
    "router_chains",
    "router_work",
    "sizes_of",
    "speed_of_light",
    "unfused_loss",
    "width",
]

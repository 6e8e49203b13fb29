"""MoE layers: their passes and stages, expert balance, host synchronization inside them."""

from tracelens.analysis.moe.layers import COMBINE, DISPATCH, EXPERTS, PERMUTATION, ROUTER, STAGES
from tracelens.analysis.moe.passes import (
    Blocking,
    blocking,
    deduplicated_share,
    expert_parallel_group,
    token_messages,
)
from tracelens.analysis.moe.regions import (
    BACKWARD,
    FORWARD,
    PHASES,
    UNATTRIBUTED,
    UNATTRIBUTED_NAME,
    LayerPass,
    Regions,
    model_layers,
    regions,
    why_no_layer,
)

__all__ = [
    "BACKWARD",
    "COMBINE",
    "DISPATCH",
    "EXPERTS",
    "FORWARD",
    "PERMUTATION",
    "PHASES",
    "ROUTER",
    "STAGES",
    "UNATTRIBUTED",
    "UNATTRIBUTED_NAME",
    "Blocking",
    "LayerPass",
    "Regions",
    "blocking",
    "deduplicated_share",
    "expert_parallel_group",
    "model_layers",
    "regions",
    "token_messages",
    "why_no_layer",
]

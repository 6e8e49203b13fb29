"""MoE layers: their passes and stages, expert balance, host synchronization inside them."""

from tracelens.analysis.moe.host_syncs import Blocking, blocking
from tracelens.analysis.moe.passes import deduplicated_share, expert_parallel_group, token_messages
from tracelens.analysis.moe.regions import BACKWARD, FORWARD, PHASES, LayerPass, Regions, regions
from tracelens.analysis.moe.stages import COMBINE, DISPATCH, EXPERTS, PERMUTATION, ROUTER, STAGES
from tracelens.analysis.moe.tensor_sizes import UNATTRIBUTED, UNATTRIBUTED_NAME

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
    "regions",
    "token_messages",
]

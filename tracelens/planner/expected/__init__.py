"""Parameters, FLOPs and messages of each rank, from the configuration alone.

Read from the ops in `planner.block`, which know neither the model's code nor torch nor the analyzers: these
are tested against them. Only the routing of tokens depends on the weights; a run reports it as a `Routing`
(see `routing_log`).
"""

from tracelens.planner.block import CHUNKS, FLOAT32, INT64, AttentionKernel, Collective
from tracelens.planner.expected.flops import (
    RankRouting,
    RankShare,
    Routing,
    ScopeFlops,
    attention_kernel,
    balanced,
    flops,
    parameters,
    totals,
)
from tracelens.planner.expected.messages import (
    REPLICA_GROUPS,
    StepMessage,
    buffer_bytes,
    group_ranks,
    is_routed,
    layer_messages,
    messages,
    step_messages,
    summary,
)

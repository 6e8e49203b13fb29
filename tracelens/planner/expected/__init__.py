"""Parameters, FLOPs and messages of each rank, from the configuration alone.

Read from the ops in `planner.block`, which know neither the model's code nor torch nor the analyzers: these
are tested against them. Only the routing of tokens depends on the weights; a run reports it as a `Routing`
(see `routing_log`).
"""

from tracelens.planner.block import CHUNKS, FLOAT32, INT64, AttentionKernel, Collective
from tracelens.planner.expected.flops import attention_kernel, flops
from tracelens.planner.expected.message import REPLICA_GROUPS, Message, group_ranks
from tracelens.planner.expected.messages import is_routed, layer_messages
from tracelens.planner.expected.parameters import parameters
from tracelens.planner.expected.routed import Routed, Routing, balanced
from tracelens.planner.expected.share import Share
from tracelens.planner.expected.step import buffer_bytes, step_messages
from tracelens.planner.expected.summary import summary

__all__ = [
    "CHUNKS",
    "FLOAT32",
    "INT64",
    "REPLICA_GROUPS",
    "AttentionKernel",
    "Collective",
    "Message",
    "Routed",
    "Routing",
    "Share",
    "attention_kernel",
    "balanced",
    "buffer_bytes",
    "flops",
    "group_ranks",
    "is_routed",
    "layer_messages",
    "parameters",
    "step_messages",
    "summary",
]

"""What a run must come to, from its configuration alone: parameters, FLOPs and messages of each rank.

Nothing here knows the model's code, torch, or the analyzers, so that each of these can be tested by it. What
depends on the weights, where the routers send tokens, a run reports as a `Routing` (see `routing_log`).
"""

from tracelens.planner.expected.flops import AttentionKernel, attention_kernel, flops, scores_work
from tracelens.planner.expected.layer import CHUNKS
from tracelens.planner.expected.message import Collective, Message, group_ranks
from tracelens.planner.expected.messages import is_routed, layer_messages
from tracelens.planner.expected.parameters import REPLICAS, parameters
from tracelens.planner.expected.routed import Routed, Routing, balanced
from tracelens.planner.expected.share import Share
from tracelens.planner.expected.step import buffer_bytes, step_messages
from tracelens.planner.expected.summary import summary

__all__ = [
    "CHUNKS",
    "REPLICAS",
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
    "scores_work",
    "step_messages",
    "summary",
]

"""Parameters, FLOPs and messages of each rank in closed form, from the configuration alone.

Independent of the model's code, of torch and of the analyzers, which are all tested against it. Only the
routing of tokens depends on the weights; a run reports it as a `Routing` (see `routing_log`).
"""

from tracelens.planner.expected.flops import AttentionKernel, attention_kernel, flops, scores_work
from tracelens.planner.expected.fp8 import fp8_flops, quantized
from tracelens.planner.expected.layer import CHUNKS
from tracelens.planner.expected.message import REPLICA_GROUPS, Collective, Message, group_ranks
from tracelens.planner.expected.messages import is_routed, layer_messages
from tracelens.planner.expected.parameters import parameters
from tracelens.planner.expected.routed import Routed, Routing, balanced
from tracelens.planner.expected.share import FLOAT32, INT64, Share
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
    "fp8_flops",
    "group_ranks",
    "is_routed",
    "layer_messages",
    "parameters",
    "quantized",
    "scores_work",
    "step_messages",
    "summary",
]

"""What a run must come to, from its configuration alone: parameters, FLOPs and messages of each rank.

Nothing here knows the model's code, torch, or the analyzers, so that each of these can be tested by it. What
depends on the weights, where the routers send tokens, a run reports as a `Routing` (see `routing_log`).
"""

from __future__ import annotations

from tracelens.planner.expected.flops import AttentionKernel, Work, attention_kernel, flops
from tracelens.planner.expected.message import Message
from tracelens.planner.expected.messages import messages
from tracelens.planner.expected.parameters import Totals, parameters, totals
from tracelens.planner.expected.routed import Routed, Routing, balanced
from tracelens.planner.expected.step import buffer_bytes
from tracelens.planner.expected.summary import summary

__all__ = [
    "AttentionKernel",
    "Message",
    "Routed",
    "Routing",
    "Totals",
    "Work",
    "attention_kernel",
    "balanced",
    "buffer_bytes",
    "flops",
    "messages",
    "parameters",
    "summary",
    "totals",
]

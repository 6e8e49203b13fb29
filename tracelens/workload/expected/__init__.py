"""What a run must come to, from its configuration alone: parameters, FLOPs and messages of each rank.

Nothing here knows the model's code, torch, or the analyzers, so that each of these can be tested by it. What
depends on the weights, where the routers send tokens, a run reports as a `Routing` (see `routing_log`).
"""

from __future__ import annotations

from tracelens.workload.expected.flops import AttentionKernel, Work, attention_kernel, flops
from tracelens.workload.expected.message import Message
from tracelens.workload.expected.messages import messages
from tracelens.workload.expected.parameters import Totals, parameters, totals
from tracelens.workload.expected.routed import Routed, Routing, balanced
from tracelens.workload.expected.step import buffer_bytes
from tracelens.workload.expected.summary import summary

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

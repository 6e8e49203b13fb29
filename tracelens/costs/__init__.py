"""What an op call costs: FLOPs and bytes from its recorded arguments."""

from tracelens.costs.call import NO_SHAPES, Batch, Lengths, OpCall, Tensor, Uncounted, size
from tracelens.costs.libraries import MESSAGE_OPS, Message, message
from tracelens.costs.model import COSTS, OpCost, cost, find

__all__ = [
    "COSTS",
    "MESSAGE_OPS",
    "NO_SHAPES",
    "Batch",
    "Lengths",
    "Message",
    "OpCall",
    "OpCost",
    "Tensor",
    "Uncounted",
    "cost",
    "find",
    "message",
    "size",
]

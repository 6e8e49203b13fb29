"""What an op call costs: FLOPs and bytes from its recorded arguments."""

from tracelens.costs.collective import MESSAGE_OPS, Message, message
from tracelens.costs.model import (
    COSTS,
    NO_SHAPES,
    UPPER_BOUND,
    CostModel,
    Engine,
    Lengths,
    OpCall,
    OpCost,
    ServingBatch,
    Tensor,
    Uncounted,
    cost,
    find,
    size,
)

__all__ = [
    "COSTS",
    "MESSAGE_OPS",
    "NO_SHAPES",
    "UPPER_BOUND",
    "CostModel",
    "Engine",
    "Lengths",
    "Message",
    "OpCall",
    "OpCost",
    "ServingBatch",
    "Tensor",
    "Uncounted",
    "cost",
    "find",
    "message",
    "size",
]

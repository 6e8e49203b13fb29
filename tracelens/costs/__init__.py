"""What an op call costs: FLOPs and bytes from its recorded arguments."""

from tracelens.costs.call import NO_SHAPES, OpCall, Tensor, Uncounted, size
from tracelens.costs.model import COSTS, OpCost, cost, find

__all__ = ["COSTS", "NO_SHAPES", "OpCall", "OpCost", "Tensor", "Uncounted", "cost", "find", "size"]

"""Memory of Megatron-core: what its layers keep for the backward, and what the allocator reserves for it."""

from tracelens.planner.memory.megatron.allocator import Allocator, OutOfMemory
from tracelens.planner.memory.megatron.chunks import chunk_costs
from tracelens.planner.memory.megatron.reserve import simulated
from tracelens.planner.memory.megatron.settings import check

__all__ = ["Allocator", "OutOfMemory", "check", "chunk_costs", "simulated"]

"""Memory of Megatron-core: what its layers keep for the backward, and what the allocator reserves for it."""

from tracelens.planner.memory.megatron.chunks import chunk_costs
from tracelens.planner.memory.megatron.settings import Settings, settings_of

__all__ = ["Settings", "chunk_costs", "settings_of"]

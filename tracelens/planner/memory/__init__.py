"""Memory per GPU of a model and a layout, by component and pipeline rank."""

from tracelens.planner.memory.allocator import MIB, Allocator, OutOfMemory, schedule
from tracelens.planner.memory.amd_guide import guide_stage
from tracelens.planner.memory.assumptions import Assumptions
from tracelens.planner.memory.memory import (
    COMPONENTS,
    DEFAULT,
    PRIMUS_RESERVE_BYTES,
    TABLES,
    memory,
    room,
    stages,
    worst,
)
from tracelens.planner.memory.stage import Kept, StageMemory, Stages, flight, static, warm_up

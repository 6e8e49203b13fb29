"""Memory per GPU of a model and a layout, by component and pipeline rank."""

from tracelens.planner.memory.amd_guide import guide_stage
from tracelens.planner.memory.assumptions import Assumptions
from tracelens.planner.memory.fits import room
from tracelens.planner.memory.memory import DEFAULT, memory
from tracelens.planner.memory.stage import Kept, Stages
from tracelens.planner.memory.static import static
from tracelens.planner.memory.tables import TABLES

__all__ = ["DEFAULT", "TABLES", "Assumptions", "Kept", "Stages", "guide_stage", "memory", "room", "static"]

"""Pipeline schedules: step time and bubble by simulation."""

from tracelens.planner.pipeline.pipeline import Setting, pipeline
from tracelens.planner.pipeline.schedule_file import find_chunks
from tracelens.planner.pipeline.schedules import SCHEDULES
from tracelens.planner.pipeline.sources import Source, Uniform, activations, roofline
from tracelens.planner.pipeline.tables import TABLES
from tracelens.planner.pipeline.times import Costs

__all__ = [
    "SCHEDULES",
    "TABLES",
    "Costs",
    "Setting",
    "Source",
    "Uniform",
    "activations",
    "find_chunks",
    "pipeline",
    "roofline",
]

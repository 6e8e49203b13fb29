"""The pipeline of a recorded run: stages, schedule, and times of layers and chunks."""

from tracelens.planner.pipeline.measured.lines import Line
from tracelens.planner.pipeline.measured.measured import Measured, measure
from tracelens.planner.pipeline.measured.source import measured_costs, measured_source

__all__ = ["Line", "Measured", "measure", "measured_costs", "measured_source"]

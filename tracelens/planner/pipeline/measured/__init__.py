"""The pipeline of a recorded run: stages, schedule, and times of layers and chunks."""

from tracelens.planner.pipeline.measured.measured import (
    PipelineMeasurement,
    measure,
    measured_costs,
    measured_source,
)

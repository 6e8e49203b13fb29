"""The pipeline of a recorded run: stages, schedule, and times of layers and chunks."""

from tracelens.planner.pipeline.measured.measured import (
    MeasuredPipeline,
    PipelineMeasurement,
    measure,
    measured_costs,
    measured_source,
)

__all__ = ["MeasuredPipeline", "PipelineMeasurement", "measure", "measured_costs", "measured_source"]

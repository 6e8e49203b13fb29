"""Pipeline parallelism: micro-batches, stages, messages between them, the bubble."""

from tracelens.analysis.pipeline.microbatches import FORWARD, Passes, Span, in_autograd, passes
from tracelens.analysis.pipeline.pass_scopes import pipeline_scopes
from tracelens.analysis.pipeline.pipelines import Stage, lane_of, pipelines, window_of
from tracelens.analysis.pipeline.stage_messages import gradient_sync, stage_messages
from tracelens.analysis.pipeline.stages import Lane, Shape, is_complete, numbered, shape

__all__ = [
    "FORWARD",
    "Lane",
    "Passes",
    "Shape",
    "Span",
    "Stage",
    "gradient_sync",
    "in_autograd",
    "is_complete",
    "lane_of",
    "numbered",
    "passes",
    "pipeline_scopes",
    "pipelines",
    "shape",
    "stage_messages",
    "window_of",
]

"""Pipeline parallelism: micro-batches, stages, messages between them, the bubble."""

from tracelens.analysis.pipeline.micro_batches import (
    FORWARD,
    MicrobatchPass,
    Passes,
    gradient_sync,
    in_autograd,
    passes,
    pipeline_scopes,
    stage_messages,
)
from tracelens.analysis.pipeline.stages import (
    Lane,
    Numbered,
    Shape,
    Stage,
    lane_of,
    model_chunks,
    numbered,
    numbered_alone,
    pipelines,
    window_of,
)

__all__ = [
    "FORWARD",
    "Lane",
    "MicrobatchPass",
    "Numbered",
    "Passes",
    "Shape",
    "Stage",
    "gradient_sync",
    "in_autograd",
    "lane_of",
    "model_chunks",
    "numbered",
    "numbered_alone",
    "passes",
    "pipeline_scopes",
    "pipelines",
    "stage_messages",
    "window_of",
]

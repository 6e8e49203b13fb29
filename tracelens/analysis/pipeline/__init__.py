"""Pipeline parallelism: micro-batches, stages, messages between them, the bubble."""

from tracelens.analysis.pipeline.graph import in_autograd
from tracelens.analysis.pipeline.interleaving import Shape
from tracelens.analysis.pipeline.microbatches import FORWARD, Passes, Span, passes
from tracelens.analysis.pipeline.numbering import Numbered, numbered, numbered_alone
from tracelens.analysis.pipeline.pass_scopes import pipeline_scopes
from tracelens.analysis.pipeline.pipelines import Stage, lane_of, pipelines, window_of
from tracelens.analysis.pipeline.stage_messages import gradient_sync, stage_messages
from tracelens.analysis.pipeline.stages import Lane

__all__ = [
    "FORWARD",
    "Lane",
    "Numbered",
    "Passes",
    "Shape",
    "Span",
    "Stage",
    "gradient_sync",
    "in_autograd",
    "lane_of",
    "numbered",
    "numbered_alone",
    "passes",
    "pipeline_scopes",
    "pipelines",
    "stage_messages",
    "window_of",
]

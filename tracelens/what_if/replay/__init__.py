"""Replays the graph: new times, the critical path, and how well it reproduces the recorded run."""

from tracelens.what_if.replay.projector import Projection, Projector, profiler_share
from tracelens.what_if.replay.replay import (
    TABLES,
    ReplayedStep,
    ScenarioOutcome,
    doubt,
    labels,
    reliability_warning,
)

__all__ = [
    "TABLES",
    "Projection",
    "Projector",
    "ReplayedStep",
    "ScenarioOutcome",
    "doubt",
    "labels",
    "profiler_share",
    "reliability_warning",
]

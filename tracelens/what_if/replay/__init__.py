"""Replays the graph: new times, the critical path, and how well it reproduces the recorded run."""

from tracelens.what_if.replay.labels import labels
from tracelens.what_if.replay.projector import Projection, Projector
from tracelens.what_if.replay.replay import DOUBTFUL, Outcome, Replay, doubt, reliability_warning
from tracelens.what_if.replay.tables import TABLES

__all__ = [
    "DOUBTFUL",
    "TABLES",
    "Outcome",
    "Projection",
    "Projector",
    "Replay",
    "doubt",
    "labels",
    "reliability_warning",
]

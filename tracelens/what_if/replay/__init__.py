"""Replaying the graph: new times, the critical path, and how well the recorded run is met."""

from tracelens.what_if.replay.labels import labels
from tracelens.what_if.replay.replay import Outcome, Replay, doubt

__all__ = ["Outcome", "Replay", "doubt", "labels"]

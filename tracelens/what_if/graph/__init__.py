"""The graph of a run: GPU work, host calls, messages, and what each of them waits for."""

from tracelens.what_if.graph.build import RankPart, Recorded, StepSpan, build, join, rank_part
from tracelens.what_if.graph.graph import Edge, Edit, Node, Rank, RunGraph, TooLong, times
from tracelens.what_if.graph.host import Covered, full_queue

__all__ = [
    "Covered",
    "Edge",
    "Edit",
    "Node",
    "Rank",
    "RankPart",
    "Recorded",
    "RunGraph",
    "StepSpan",
    "TooLong",
    "build",
    "full_queue",
    "join",
    "rank_part",
    "times",
]

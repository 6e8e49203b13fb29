"""The graph of a run: GPU work, host calls, messages, and what each of them waits for."""

from tracelens.what_if.graph.blocking import SYNCHRONIZE_NS
from tracelens.what_if.graph.build import Recorded, build, join
from tracelens.what_if.graph.edit import Edit, TooLong, times
from tracelens.what_if.graph.graph import Edge, Graph, Node, Rank
from tracelens.what_if.graph.handovers import Covered
from tracelens.what_if.graph.queue import full_queue
from tracelens.what_if.graph.rank_part import RankPart, rank_part
from tracelens.what_if.graph.windows import StepSpan

__all__ = [
    "SYNCHRONIZE_NS",
    "Covered",
    "Edge",
    "Edit",
    "Graph",
    "Node",
    "Rank",
    "RankPart",
    "Recorded",
    "StepSpan",
    "TooLong",
    "build",
    "full_queue",
    "join",
    "rank_part",
    "times",
]

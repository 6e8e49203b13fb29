"""The graph of a run: GPU work, host calls, messages, and what each of them waits for."""

from tracelens.what_if.graph.blocking import SYNCHRONIZE_NS
from tracelens.what_if.graph.build import Recorded, build
from tracelens.what_if.graph.edit import Edit, TooLong
from tracelens.what_if.graph.graph import Edge, Graph, Node
from tracelens.what_if.graph.handovers import Covered
from tracelens.what_if.graph.windows import StepSpan

__all__ = [
    "SYNCHRONIZE_NS",
    "Covered",
    "Edge",
    "Edit",
    "Graph",
    "Node",
    "Recorded",
    "StepSpan",
    "TooLong",
    "build",
]

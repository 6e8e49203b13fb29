"""The graph of a run: GPU work, host calls, messages, and what each of them waits for."""

from tracelens.what_if.graph.build import Recorded, build
from tracelens.what_if.graph.edit import Edit, TooLong, whole_ns
from tracelens.what_if.graph.graph import (
    ARRIVAL,
    HANDOVER,
    HOST,
    LAUNCH,
    MEET,
    ORDER,
    OWN,
    POINT,
    STREAM,
    SYNC,
    TRANSFER,
    WAIT,
    WAITED,
    WORK,
    Graph,
)
from tracelens.what_if.graph.handovers import Covered
from tracelens.what_if.graph.windows import StepSpan

__all__ = [
    "ARRIVAL",
    "HANDOVER",
    "HOST",
    "LAUNCH",
    "MEET",
    "ORDER",
    "OWN",
    "POINT",
    "STREAM",
    "SYNC",
    "TRANSFER",
    "WAIT",
    "WAITED",
    "WORK",
    "Covered",
    "Edit",
    "Graph",
    "Recorded",
    "StepSpan",
    "TooLong",
    "build",
    "whole_ns",
]

"""The graph of a run: GPU work, host calls, messages, and what each of them waits for."""

from tracelens.what_if.graph.build import RankPart, Recorded, StepSpan, build, join, rank_part
from tracelens.what_if.graph.changes import (
    ALL_TO_ALLS,
    add_calls,
    drop_host_time,
    drop_work,
    fuse,
    marked,
    marked_calls,
    meetings_of,
    of_calls,
    scale_pace,
    unblock,
    usual_host_share,
    work_nodes,
)
from tracelens.what_if.graph.graph import Edge, Edit, Node, Rank, RunGraph, TooLong, times
from tracelens.what_if.graph.host import Covered, full_queue

__all__ = [
    "ALL_TO_ALLS",
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
    "add_calls",
    "build",
    "drop_host_time",
    "drop_work",
    "full_queue",
    "fuse",
    "join",
    "marked",
    "marked_calls",
    "meetings_of",
    "of_calls",
    "rank_part",
    "scale_pace",
    "times",
    "unblock",
    "usual_host_share",
    "work_nodes",
]

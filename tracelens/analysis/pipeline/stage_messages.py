"""The messages between the stages of a pipeline, and what is not one of them, on one rank."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from tracelens.analysis.comm import POINT_TO_POINT
from tracelens.analysis.common import integers
from tracelens.arrays import Bool, Int, lookup
from tracelens.trace import Trace, Work

_PIPELINE = re.compile(r"pipeline|(^|_)pp($|_)", re.IGNORECASE)
# Groups whose collectives run beside the backward of whatever micro-batch is the last one.
_GRADIENTS = re.compile(r"data_parallel|distributed_optimizer|fsdp|(^|_)e?dp($|_)", re.IGNORECASE)
_SHAPES = "Long"  # messages of this type tell the shape of the one that follows


class Messages(NamedTuple):
    """Sends and receives of a pipeline, one element a message.

    Attributes:
        time: when the host asked for it, ns.
        kernel: event row of its kernel, -1 if not in the trace.
        sent: whether it is a send, of data and not of shapes.
        group_ranks: the ranks of the pipeline, empty where the trace does not say.
    """

    time: Int
    kernel: Int
    sent: Bool
    group_ranks: tuple[int, ...]


def stage_messages(trace: Trace, *, unnamed: bool) -> Messages:
    """Of groups that are named a pipeline, and of the group of all ranks beside them.

    With two stages Megatron-LM sends one way through the group of all ranks, so that both ways overlap.
    Experts and attention over several ranks send and receive as well, in groups of their own, so where no
    group is named a pipeline, something else (`unnamed`) has to say that there is one.
    """
    table = trace.tables["collectives"]
    rows = np.flatnonzero(table.coded("collective").mask(POINT_TO_POINT.__contains__))
    names = table.texts("group_description", rows)
    named = np.array([bool(_PIPELINE.search(name)) for name in names], dtype=bool)
    nameless = np.array([name in ("", "undefined", "default_pg") for name in names], dtype=bool)
    lists = [integers(text) for text in table.texts("group_ranks", rows[named] if named.any() else rows)]
    group_ranks = next((tuple(ranks) for ranks in lists if ranks), ())
    rows = rows[named | (nameless & (named.any() or unnamed))]
    time = trace.arrays.start[table.array("event_id")[rows]]
    if trace.window is not None:
        kernel = table.array("kernel_id")[rows]
        time_on_gpu = lookup(trace.arrays.start, kernel, time)
        inside = (time_on_gpu >= trace.window.start) & (time_on_gpu < trace.window.end)
        rows, time = rows[inside], time[inside]
    kinds = zip(table.texts("collective", rows), table.texts("dtype", rows), strict=True)
    sent = np.array([kind == "send" and dtype != _SHAPES for kind, dtype in kinds], dtype=bool)
    return Messages(time, table.array("kernel_id")[rows], sent, group_ranks)


def gradient_sync(trace: Trace, work: Work) -> Bool:
    """Which work is communication among the replicas of a stage."""
    table = trace.tables["collectives"]
    kernel = table.array("kernel_id")
    return np.isin(work.event, kernel[table.coded("group_description").mask(_GRADIENTS.search)])

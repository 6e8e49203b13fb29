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
        kernel: event row of its kernel, -1 if not in the trace; a batch of messages shares one.
        is_send: sent by this rank.
        is_data: no message of shapes.
        peer: the rank at the other end, -1 where it is not recorded.
        group_ranks: the ranks of the pipeline, empty where the trace does not say.
    """

    time: Int
    kernel: Int
    is_send: Bool
    is_data: Bool
    peer: Int
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
    time = _request_times(trace, table.array("event_id")[rows])
    if trace.window is not None:
        inside = (time >= trace.window.host_start) & (time < trace.window.host_end)
        rows, time = rows[inside], time[inside]
    rows, time = (values[np.argsort(time, kind="stable")] for values in (rows, time))
    peer = table.array("peer")[rows]
    if len(group_ranks) == 2 and trace.meta.rank in group_ranks:
        peer = np.where(peer < 0, sum(group_ranks) - trace.meta.rank, peer)
    return Messages(
        time,
        table.array("kernel_id")[rows],
        np.array([kind == "send" for kind in table.texts("collective", rows)], dtype=bool),
        np.array([dtype != _SHAPES for dtype in table.texts("dtype", rows)], dtype=bool),
        peer,
        group_ranks,
    )


def _request_times(trace: Trace, record: Int) -> Int:
    """When the host asked for each message: of records that only the kernel bears, when it was launched."""
    work = trace.work
    call = lookup(work.host_call, lookup(trace.arrays.places(work.event), record, -1), -1)
    return trace.arrays.start[np.where(call >= 0, call, record)]


def gradient_sync(trace: Trace, work: Work) -> Bool:
    """Which work is communication among the replicas of a stage."""
    table = trace.tables["collectives"]
    kernel = table.array("kernel_id")
    return np.isin(work.event, kernel[table.coded("group_description").mask(_GRADIENTS.search)])

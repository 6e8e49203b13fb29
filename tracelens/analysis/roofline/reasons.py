"""Why GPU work is not counted: what the trace lacks, or what tracelens lacks."""

from __future__ import annotations

import numpy as np

from tracelens.arrays import Bool, Int
from tracelens.trace import WORK_KINDS, Events, Trace, Work

NO_MODEL = "no cost model"
"""The one reason that is a hole of tracelens and not of the trace."""
CUSTOM_OP = "custom op without a registered cost model"
REPEATED = "launched before the recording: arguments of the same work at its end"
"""Not a reason but a note: where the arguments are from."""
PARTLY = "launched before the recording began; the GPU recorded only part of its call"
CUT_OFF = "cut off at the edge of the chosen step"
BEYOND = "recorded sizes exceed any memory"
_BEFORE = "launched before the recording began, and not repeated during it"
_NO_OP = "launched outside any recorded op"
_GRAPH = "launched by a graph; --captures or --twin finds the ops"
_NODE = "launched by a graph, and not aligned with its capture"
_NO_SIZES = "communication with no recorded size"

# Ops of these namespaces are PyTorch's own: not to know them is our hole, not the trace's.
_OWN = ("aten::", "c10d::", "quantized::", "prim::")


def unknown(op: str) -> str:
    """Why an op without a cost model is not counted."""
    return NO_MODEL if op.startswith(_OWN) else CUSTOM_OP


def lacking(trace: Trace, work: Work, opaque: Bool, unexplained: Bool) -> list[tuple[Int, str]]:
    """What the trace lacks about work that no cost model spoke of.

    Args:
        trace: of the rank.
        work: its GPU work.
        opaque: mask of work in ops without a cost model; communication is told apart from other work there.
        unexplained: mask of work that has neither cost nor reason.

    Returns:
        (positions in `work`, reason) for each reason.
    """
    names = trace.arrays.names
    graph = np.array(["GraphLaunch" in name for name in names], dtype=bool)
    by_graph = (work.launch >= 0) & graph[trace.arrays.name[work.launch]]
    attributed = np.isin(work.launch, np.unique(work.launch[work.node >= 0]))
    comm = work.kind == WORK_KINDS.index("comm")
    early, late = unexplained & work.unlinked, unexplained & ~work.unlinked
    return [
        (np.flatnonzero(mask), reason)
        for mask, reason in (
            (early, _BEFORE),
            (late & by_graph & ~attributed, _GRAPH),
            (late & by_graph & attributed, _NODE),
            ((late & ~by_graph & comm) | (opaque & comm), _NO_SIZES),
            (late & ~by_graph & ~comm, _NO_OP),
        )
    ]


def cut_off(trace: Trace, work: Work, call: Int) -> Bool:
    """Mask of work whose call a chosen step has only a part of; a whole call's cost is not that part's.

    Args:
        trace: of the rank.
        work: its GPU work in the step.
        call: of each piece, an event row or a number beyond all event rows.
    """
    window, events = trace.window, trace.arrays
    if window is None:
        return np.zeros(len(work.event), dtype=bool)
    links = trace.tables["links"]
    piece, op = links.array("kernel_id"), links.array("op_id")
    outside = (events.start[piece] < window.start) | (events.end[piece] > window.end)
    cut = with_surroundings(events, op[outside])
    across = np.zeros(len(events.start), dtype=bool)
    across[piece[outside]] = True
    of_op: Bool = np.where(call < len(cut), cut[np.minimum(call, len(cut) - 1)], across[work.event])
    return of_op


def with_surroundings(events: Events, rows: Int) -> Bool:
    """Mask of these event rows and of all that they are nested in; -1 is ignored."""
    marked = np.zeros(len(events.start), dtype=bool)
    while len(rows := np.unique(rows[rows >= 0])):
        rows = rows[~marked[rows]]
        marked[rows] = True
        rows = events.parent[rows]
    return marked

"""When each node of a graph starts and ends if something were otherwise: one pass over all nodes."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from tracelens.arrays import Int
from tracelens.what_if.graph import Edit, Graph

Delays = Literal["low", "typical", "high"]
"""What becomes of the delays that nothing in the trace explains, where what a node waits for has changed.

A node is ready when all its edges allow it to start. One that is ready when it was keeps its delay, always.
For one that is ready earlier than it was:

- `low`: the delay vanishes. It was the wait for something that has gone as well.
- `high`: the delay stays in full. It has nothing to do with what changed.
- `typical`: the delay stays up to the median of all delays behind edges of its kind, and the excess vanishes:
  the usual cost of such an edge stays, and what was longer had a cause that went.

For one that is ready later than it was: `low` starts it then, or when it did start if that is later (the
delay goes on meanwhile), `high` keeps the delay, `typical` is the later of `low` with a typical delay and
`low`. A node never starts earlier for being ready later, so each node starts at low <= typical <= high, and
what takes less time makes no node start later. That is said of points in time: a step lasts from one to
another, both of which move.
"""


class Times(NamedTuple):
    """One schedule.

    Attributes:
        start: of each node, ns by the clock of the first rank.
        end: of each node.
        ready: when the edges of each node allowed it to start.
        via: the edge that each node waited for last, -1 for none.
    """

    start: Int
    end: Int
    ready: Int
    via: Int


def schedule(graph: Graph, edit: Edit, delays: Delays = "typical") -> Times:
    """Start and end of each node.

    Args:
        graph: what was recorded.
        edit: what is otherwise.
        delays: see Delays.
    """
    kept = np.flatnonzero(edit.kept)
    first = np.searchsorted(graph.dst[kept], np.arange(len(graph) + 1)).tolist()
    src, lag = graph.src[kept].tolist(), edit.lag[kept].tolist()
    dur, measured, delay = edit.dur.tolist(), graph.start.tolist(), edit.delay.tolist()
    stays = _stays(graph, edit.delay, delays).tolist()
    absorbs = delays != "high"
    start, end, ready, via = ([0] * len(graph) for _ in range(4))
    for node in range(len(graph)):
        low, high = first[node], first[node + 1]
        was, late = measured[node], delay[node]
        if low == high:
            begin = was
            ready[node], via[node] = was, -1
        else:
            at, best = end[src[low]] + lag[low], low
            for edge in range(low + 1, high):
                told = end[src[edge]] + lag[edge]
                if told > at:
                    at, best = told, edge
            ready[node], via[node] = at, best
            if at < was - late:
                begin = at + stays[node]
            elif absorbs:
                begin = max(at + stays[node], was)
            else:
                begin = at + late
        start[node] = begin
        end[node] = begin + dur[node]
    chosen = np.array(via, dtype=np.int64)
    return Times(
        np.array(start, dtype=np.int64),
        np.array(end, dtype=np.int64),
        np.array(ready, dtype=np.int64),
        np.where(chosen >= 0, kept[np.maximum(chosen, 0)] if len(kept) else -1, -1),
    )


def binding(graph: Graph) -> Int:
    """The edge that each node waited for last as measured, -1 for none."""
    told = graph.end[graph.src] + graph.lag
    order = np.lexsort((told, graph.dst))
    last = np.full(len(graph), -1, dtype=np.int64)
    last[graph.dst[order]] = order
    return last


def usual_delays(graph: Graph, delay: Int) -> Int:
    """Of each node, the median delay of all nodes that waited last for an edge of the same kind, ns."""
    last = binding(graph)
    usual = np.zeros(len(graph), dtype=np.int64)
    kinds = np.where(last >= 0, graph.edge[np.maximum(last, 0)] if len(graph.edge) else -1, -1)
    for kind in np.unique(kinds[kinds >= 0]).tolist():
        mine = kinds == kind
        usual[mine] = int(np.median(delay[mine]))
    return usual


def _stays(graph: Graph, delay: Int, delays: Delays) -> Int:
    """What stays of each node's delay when it is ready earlier than it was."""
    if delays == "high":
        return delay
    if delays == "low":
        return np.zeros_like(delay)
    return np.minimum(delay, usual_delays(graph, delay))

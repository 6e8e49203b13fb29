"""When each node of an edited graph starts and ends: one pass over all nodes."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from tracelens.arrays import Int, lookup
from tracelens.what_if.graph import Edit, Graph

Delays = Literal["low", "typical", "high"]
"""What happens to unexplained delays when a node's dependencies change.

A node is ready when all its edges allow it to start. A node ready at the measured time keeps its delay. For
a node ready earlier:

- `low`: the delay vanishes, as a wait for something that is gone as well.
- `high`: the delay stays in full, as unrelated to the change.
- `typical`: the delay stays up to the median delay behind edges of its kind: the usual cost of such an edge
  stays, the excess vanishes.

A node ready later starts then or at its measured start if that is later (`low`), keeps its delay (`high`), or
starts at the later of `low` with a typical delay and `low` (`typical`). A node never starts earlier for being
ready later, so each node starts at low <= typical <= high, and shorter durations delay no node. This holds
for points in time: both ends of a step move.
"""


class Times(NamedTuple):
    """One schedule."""

    start: Int  # of each node, ns by the clock of the first rank
    end: Int
    ready: Int  # when the edges of each node allowed it to start
    via: Int  # the edge that each node waited for last, -1 for none


def schedule(graph: Graph, edit: Edit, delays: Delays = "typical") -> Times:
    """Start and end of each node of the edited graph."""
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
            ready_ns, best = end[src[low]] + lag[low], low
            for edge in range(low + 1, high):
                allowed_ns = end[src[edge]] + lag[edge]
                if allowed_ns > ready_ns:
                    ready_ns, best = allowed_ns, edge
            ready[node], via[node] = ready_ns, best
            if ready_ns < was - late:
                begin = ready_ns + stays[node]
            elif absorbs:
                begin = max(ready_ns + stays[node], was)
            else:
                begin = ready_ns + late
        start[node] = begin
        end[node] = begin + dur[node]
    last_edge = np.array(via, dtype=np.int64)
    return Times(
        np.array(start, dtype=np.int64),
        np.array(end, dtype=np.int64),
        np.array(ready, dtype=np.int64),
        lookup(kept, last_edge, -1),
    )


def binding(graph: Graph) -> Int:
    """The edge that each node waited for last as measured, -1 for none."""
    allowed_ns = graph.end[graph.src] + graph.lag
    order = np.lexsort((allowed_ns, graph.dst))
    last = np.full(len(graph), -1, dtype=np.int64)
    last[graph.dst[order]] = order
    return last


def usual_delays(graph: Graph, delay: Int) -> Int:
    """Of each node, the median delay of all nodes that waited last for an edge of the same kind, ns."""
    last = binding(graph)
    usual = np.zeros(len(graph), dtype=np.int64)
    kinds = lookup(graph.edge, last, -1)
    for kind in np.unique(kinds[kinds >= 0]).tolist():
        same_kind = kinds == kind
        usual[same_kind] = int(np.median(delay[same_kind]))
    return usual


def _stays(graph: Graph, delay: Int, delays: Delays) -> Int:
    """What stays of each node's delay when it is ready earlier than it was."""
    if delays == "high":
        return delay
    if delays == "low":
        return np.zeros_like(delay)
    return np.minimum(delay, usual_delays(graph, delay))

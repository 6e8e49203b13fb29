"""How much of a step the graph explains: replays without unexplained delays."""

from __future__ import annotations

import numpy as np

from tracelens.trace import rows_by_code
from tracelens.what_if.graph import Edge, Edit, Graph
from tracelens.what_if.replay.schedule import binding


def typical_launches(graph: Graph) -> Edit:
    """All launches by calls of one name take the median time of those that nothing else held up.

    No measured time between these calls and kernels remains, so reproducing the step is a real test of the
    graph.
    """
    edit = Edit.of(graph)
    last = binding(graph)
    launches = graph.edge == Edge.LAUNCH
    held = np.zeros(len(graph.edge), dtype=bool)
    held[last[last >= 0]] = True
    # Kernels of a graph after its first wait for others of the graph.
    rows = np.flatnonzero(launches)
    launches[:] = False
    launches[rows[np.unique(graph.src[rows], return_index=True)[1]]] = True
    held &= launches
    rows = np.flatnonzero(launches)
    of_rank = rows_by_code(graph.rank[graph.dst[rows]])
    for rank, trace in enumerate(graph.run.traces):
        if trace.meta.cpu_only or rank not in of_rank:
            continue
        rank_rows = rows[of_rank[rank]]
        name = trace.arrays.name[graph.event[graph.src[rank_rows]]]
        for code in np.unique(name).tolist():
            same = rank_rows[name == code]
            free = same[held[same]]
            if len(free):
                edit.lag[same] = int(np.median(graph.lag[free] + graph.delay[graph.dst[free]]))
                edit.delay[graph.dst[free]] = 0
    return edit


def edges_alone(graph: Graph) -> Edit:
    """No unexplained delays: everything starts when its edges allow."""
    edit = Edit.of(graph)
    edit.delay[:] = 0
    return edit

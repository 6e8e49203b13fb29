"""What another run with the change may measure: host and GPU times as they differ between runs."""

from __future__ import annotations

import numpy as np

from tracelens.what_if.graph import Edge, Edit, Graph, times

HOST_SHARE, GPU_SHARE, CHANGED_SHARE = 0.20, 0.05, 0.20
"""How much host time, GPU work, and GPU work whose duration a scenario sets, may differ from the replay's.

At least 80% of 36 pairs of recordings lie inside (docs/whatif-truth.md). Steps of one process alone differ as
much: by 15% and more where the host decides, by 5% where the GPU does.
"""

_HOST = (Edge.HOST, Edge.HANDOVER, Edge.ORDER)


def varied(graph: Graph, edit: Edit, sign: int) -> Edit:
    """The edit with all host and GPU times longer (sign 1) or shorter (-1) by their shares."""
    result = Edit(edit.dur.copy(), edit.delay, edit.lag.copy(), edit.kept)
    host = np.isin(graph.edge, _HOST)
    result.lag[host] = times(edit.lag[host], 1 + sign * HOST_SHARE)
    share = np.where(edit.dur != graph.dur, CHANGED_SHARE, GPU_SHARE)
    nodes = np.flatnonzero(edit.dur)
    result.dur[nodes] = times(edit.dur[nodes], 1 + sign * share[nodes])
    return result

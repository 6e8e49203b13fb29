"""`Edit`: what a scenario changes in a graph."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracelens.projection.whatif.graph import Graph

Int = NDArray[np.int64]
Bool = NDArray[np.bool_]


@dataclass
class Edit:
    """Copies of what may be otherwise in a graph; scenarios change them in place, one after the other.

    Attributes:
        dur: duration of each node, ns.
        delay: unexplained delay of each node, ns.
        lag: of each edge, ns.
        kept: which edges are there.
    """

    dur: Int
    delay: Int
    lag: Int
    kept: Bool

    @staticmethod
    def of(graph: Graph) -> Edit:
        """An edit that changes nothing."""
        return Edit(
            graph.dur.copy(), graph.delay.copy(), graph.lag.copy(), np.ones(len(graph.edge), dtype=bool)
        )

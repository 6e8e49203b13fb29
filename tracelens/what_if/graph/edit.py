"""`Edit`: what a scenario changes in a graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracelens.arrays import Bool, Int
from tracelens.what_if.graph.graph import Graph

Float = NDArray[np.floating[Any]]

_MOST_NS = 10**12
"""Longest duration a scenario may set; sums over a recording stay within 64 bits."""


class TooLong(Exception):
    """A scenario sets a duration longer than any step."""


def whole_ns(changed: Float, was: Int) -> Int:
    """Changed durations or lags in whole ns.

    Args:
        changed: ns.
        was: before the change, ns; a duration that does not grow is never too long.

    Raises:
        TooLong: one grows beyond 1,000 s.
    """
    if ((changed > _MOST_NS) & (changed > was)).any():
        raise TooLong
    return np.rint(changed).astype(np.int64)


@dataclass
class Edit:
    """Editable copies of a graph's arrays; scenarios change them in place, one after the other.

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

"""`Edit`: what a scenario changes in a graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracelens.arrays import Bool, Int
from tracelens.what_if.graph.graph import Graph

_MOST_NS = 10**12
"""Longest duration a scenario may set; sums over a recording stay within 64 bits."""


class TooLong(Exception):
    """A scenario sets a duration longer than any step."""


@dataclass
class Edit:
    """Editable copies of a graph's arrays, which scenarios change in place, one after the other."""

    dur: Int  # duration of each node, ns
    delay: Int  # unexplained delay of each node, ns
    lag: Int  # of each edge, ns
    kept: Bool  # which edges are there

    @staticmethod
    def of(graph: Graph) -> Edit:
        """An edit that changes nothing."""
        return Edit(
            graph.dur.copy(), graph.delay.copy(), graph.lag.copy(), np.ones(len(graph.edge), dtype=bool)
        )

    def copy(self) -> Edit:
        """One that can be changed apart."""
        return Edit(self.dur.copy(), self.delay.copy(), self.lag.copy(), self.kept.copy())

    def set_dur(self, nodes: Int, ns: NDArray[np.floating[Any]]) -> None:
        """Set durations, rounded to whole ns.

        Raises:
            TooLong: one grows beyond 1,000 s.
        """
        self.dur[nodes] = _whole_ns(ns, self.dur[nodes])

    def set_lag(self, edges: Int | Bool, ns: NDArray[np.floating[Any]]) -> None:
        """Set lags; see `set_dur`."""
        self.lag[edges] = _whole_ns(ns, self.lag[edges])


def _whole_ns(changed: NDArray[np.floating[Any]], before: Int) -> Int:
    """A duration that does not grow is never too long."""
    if ((changed > _MOST_NS) & (changed > before)).any():
        raise TooLong
    whole: Int = np.rint(changed).astype(np.int64)
    return whole


def times(ns: Int, factor: float | NDArray[np.floating[Any]]) -> Int:
    """Durations times a factor, as far as they may grow."""
    grown: Int = np.rint(np.minimum(ns * factor, np.maximum(ns, _MOST_NS))).astype(np.int64)
    return grown

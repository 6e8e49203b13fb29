"""A piece of the graph without its chains: the nodes at which a replay has to decide anything.

Half of all nodes are points on host threads that wait for one other node and have no delay of their own: they
end a fixed time after it, whatever happens. They are left out, and the edges from them start at the node
before, with that time on top. What is left has two edges or a delay; a node of n edges takes n - 1 rows, so
that every row is the later of two times.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracelens.arrays import Bool, Int, lookup, ranges
from tracelens.what_if.graph import Edit, Graph

NEVER = -(1 << 60)
"""A lag that no time of a run makes up for, ns."""


class Side(NamedTuple):
    """One of the two ends that each row waits for."""

    position: list[int]
    edge: Int  # -1 for none
    chain: Int  # the chained node from which the edge comes, position in `chained`; -1 for none
    continues: Bool  # whether it is the row before, of the same node


class Reduction:
    """Nodes to replay, prepared once for many edits.

    Positions count all ends that a replay knows: one for those that wait for nothing, then `outside`, then
    one a row.

    Attributes:
        computed: the nodes, ascending.
        outside: nodes that they wait for and that stay as they are, ascending.
        chained: of `computed`, those that only follow another node.
        core: of `computed`, all others, in order.
        position: of each core node's end.
        last: row of each core node.
        rows: number of rows.
        first, second: what each row waits for.
    """

    def __init__(self, graph: Graph, computed: Int, apart: Bool | None = None) -> None:
        """Prepare these nodes of a graph.

        Args:
            graph: of the run.
            computed: nodes, ascending.
            apart: of each of them, whether it counts as core in any case.
        """
        self.computed = computed
        count = graph.first[computed + 1] - graph.first[computed]
        is_chained = (count == 1) & (graph.delay[computed] == 0)
        if apart is not None:
            is_chained &= ~apart
        self.chained, self.core, self._is_core = computed[is_chained], computed[~is_chained], ~is_chained
        self.chained_edge = graph.first[self.chained]
        self._owner, self.edges = ranges(graph.first[computed], count)
        sources = graph.src[self.edges]
        self.outside = np.unique(sources[_rows(computed, sources) < 0])
        ahead = 1 + len(self.outside)
        self._without_edges = np.flatnonzero(count[~is_chained] == 0)
        taken = np.maximum(count[~is_chained] - 1, 1)
        self.last = np.cumsum(taken) - 1
        self.rows = int(taken.sum())
        self.position = ahead + self.last
        self._find_roots(graph, ahead)
        self.first, self.second = self._sides(graph, count[~is_chained], taken)

    def _find_roots(self, graph: Graph, ahead: int) -> None:
        """Where each chain hangs: position of the end before it; and how to add up along chains."""
        is_chained = ~self._is_core
        # Of each computed node: its position among the ends, and its number among the chained ones.
        self._position, self._number = np.zeros((2, len(self.computed)), dtype=np.int64)
        self._position[self._is_core] = self.position
        self._number = np.where(is_chained, np.cumsum(is_chained) - 1, -1)
        source = graph.src[self.chained_edge]
        position, up = self._known(source)
        # Of the last ones, "the one before" is one without a weight.
        none = len(up)
        up = np.append(np.where(up < 0, none, up), none)
        self._jumps = []
        root = np.append(np.where(up[:-1] == none, position, 0), 0)
        while (up != none).any():
            self._jumps.append(up)
            root = np.maximum(root, root[up])
            up = up[up]
        self._position[is_chained] = root[:-1]

    def _known(self, nodes: Int) -> tuple[Int, Int]:
        """Position of the end that each node has or follows, 0 for none; and its number if it is chained."""
        row, outside = _rows(self.computed, nodes), _rows(self.outside, nodes)
        position = np.where(row >= 0, lookup(self._position, row, 0), 1 + outside)
        return position, lookup(self._number, row, -1)

    def _sides(self, graph: Graph, count: Int, taken: Int) -> tuple[Side, Side]:
        """The two ends that each row waits for: two edges of its node, or the row before and one edge."""
        of_core, within = ranges(np.zeros(len(taken), dtype=np.int64), taken)
        edge, edges = graph.first[self.core][of_core], count[of_core]
        first = np.where((within == 0) & (edges > 0), edge, -1)
        second = np.where(edges > 0, edge + np.where(edges == 1, 0, within + 1), -1)
        before = np.where(within > 0, len(self.outside) + np.arange(self.rows), -1)
        return self._side(graph, first, before), self._side(graph, second, np.full(self.rows, -1))

    def _side(self, graph: Graph, edge: Int, before: Int) -> Side:
        position, number = self._known(lookup(graph.src, edge, -1))
        return Side(np.where(before >= 0, before, position).tolist(), edge, number, before >= 0)

    def fits(self, edit: Edit) -> bool:
        """Whether the chains are still chains under an edit."""
        return not edit.delay[self.chained].any() and bool(edit.kept[self.chained_edge].all())

    def free(self, edit: Edit) -> Int:
        """Positions in `core` of the nodes that have no edge, or none that is kept."""
        kept = edit.kept[self.edges]
        if kept.all():
            return self._without_edges
        waits = np.zeros(len(self.computed), dtype=bool)
        waits[self._owner[kept]] = True
        return np.flatnonzero(~waits[self._is_core])

    def beyond_roots(self, edit: Edit) -> Int:
        """How long after the end before its chain each chained node ends, ns; one more element, 0."""
        total = np.append(edit.lag[self.chained_edge] + edit.dur[self.chained], 0)
        for up in self._jumps:
            total = total + total[up]
        return total

    def lags(self, edit: Edit, beyond: Int) -> tuple[list[int], list[int]]:
        """The lag of both sides of each row, from the ends that they wait for."""
        first, second = (
            np.where(
                lookup(edit.kept, side.edge, False),
                lookup(edit.lag, side.edge, 0) + lookup(beyond, side.chain, 0),
                np.where(side.continues, 0, NEVER),
            ).tolist()
            for side in (self.first, self.second)
        )
        return first, second

    def ends(self, beyond: Int, ends: list[int], nodes: Int, measured: Int) -> Int:
        """The end of each of these nodes from those of all positions; as measured if it is not computed."""
        position, number = self._known(nodes)
        known = np.fromiter(map(ends.__getitem__, position.tolist()), np.int64, len(nodes))
        is_computed = (number >= 0) | (position > len(self.outside))
        return np.where(is_computed, known + lookup(beyond, number, 0), measured)


def _rows(ascending: Int, values: Int) -> Int:
    """Row of each value among ascending ones, -1 for none."""
    row = np.searchsorted(ascending, values)
    return np.where(lookup(ascending, np.where(row < len(ascending), row, -1), -2) == values, row, -1)

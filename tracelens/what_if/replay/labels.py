"""Names of the nodes of a graph."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracelens.arrays import Int
from tracelens.table import Coded
from tracelens.what_if.graph import Node, Recorded


class Labels(NamedTuple):
    """Names of all nodes."""

    # of an activity its kernel or op, of a meeting its collective, of a host point the enclosing op,
    # else the call or mark itself
    name: Coded
    # kernel class of an activity and of a collective's kernels, "communication" of a meeting, else ""
    category: Coded


def labels(recorded: Recorded) -> Labels:
    """The names of all nodes."""
    graph = recorded.graph
    of_rank = [nodes[graph.kind[nodes] != Node.MEET] for nodes in graph.of_rank]
    meetings = np.flatnonzero(graph.kind == Node.MEET)
    rows = np.concatenate((*of_rank, meetings))
    slots = [graph.slot[nodes] for nodes in of_rank]
    matched = recorded.collectives.matched
    collectives = Coded.of([matched[number].collective for number in graph.collective[meetings].tolist()])
    communication = Coded(np.zeros(len(meetings), dtype=np.int64), ["communication"])
    names = [rank.label.take(slot) for rank, slot in zip(graph.ranks, slots, strict=True)]
    categories = [rank.category.take(slot) for rank, slot in zip(graph.ranks, slots, strict=True)]
    return Labels(_in_order([*names, collectives], rows), _in_order([*categories, communication], rows))


def _in_order(parts: list[Coded], rows: Int) -> Coded:
    """One column over all nodes from one per part, whose nodes follow each other in `rows`."""
    column = Coded.concat(parts)
    codes = np.empty(len(rows), dtype=np.int64)
    codes[rows] = column.codes
    return Coded(codes, column.values)

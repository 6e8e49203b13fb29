"""Which backward ran when on the host, and which forward made its nodes: read from the autograd graph."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracelens.arrays import Bool, Int, lookup
from tracelens.table import nearest
from tracelens.trace import Trace, forward_ops

_NODE = "autograd::engine::evaluate_function"


class Graph(NamedTuple):
    """The host's time cut into cells, and the cells in which backwards and forwards ran.

    A backward whose forward is not recorded has the forward -1. Two backwards with one forward are the
    gradients of its inputs and those of its weights (zero-bubble schedules).

    Attributes:
        borders: ns of the host, ascending: cell c is [borders[c - 1], borders[c]).
        backward: cell of each backward, in order of time.
        forward: cell of its forward.
        made: when the first op began that made one of its nodes, ns.
    """

    borders: Int
    backward: Int
    forward: Int
    made: Int


def in_autograd(trace: Trace) -> Bool:
    """Which events the autograd engine ran."""
    events = trace.arrays
    return nearest(events.parent, events.depth, _is_node(trace)) >= 0


def _is_node(trace: Trace) -> Bool:
    events, ops = trace.arrays, trace.tables["ops"]
    is_node: Bool = events.named(lambda name: name.startswith(_NODE)) & events.where("op")
    is_node[ops.array("event_id")[ops.array("forward_thread") > 0]] = True
    return is_node


def autograd_graph(trace: Trace, cuts: Int) -> Graph | None:
    """The backwards of a trace with their forwards; None where no forward op of a backward is recorded.

    A backward is what the engine runs while the host neither makes nodes nor sends or receives. Its forward
    is the cell in which most of its nodes were made: other ops of the same graph, such as the scaling of
    the loss, may stand behind a message or another pass, and are no forward.

    Args:
        trace: of the rank.
        cuts: times at which the host ended a pass: messages, step marks and optimizer steps, ascending.
    """
    events = trace.arrays
    is_node = _is_node(trace)
    node = np.flatnonzero(is_node)
    node = node[np.argsort(events.start[node], kind="stable")]
    maker, sequence = _makers(trace, node)
    if not (maker >= 0).any():
        return None
    made = events.start[maker]
    begins = _begins(events.start[node], made, maker >= 0, sequence, cuts)
    number = np.cumsum(begins) - 1
    # The event around a node may have no number: a backward begins with the outer one of the two.
    first = node[begins]
    first = np.where(lookup(is_node, events.parent[first], False), events.parent[first], first)
    start = events.start[first]
    ends = np.zeros(len(start), dtype=np.int64)
    np.maximum.at(ends, number, events.end[node])
    ends[:-1] = np.minimum(ends[:-1], start[1:])
    borders = np.unique(np.concatenate((cuts, start, ends)))
    is_made = maker >= 0
    borders = np.union1d(borders, _next_forwards(borders, number[is_made], made[is_made], sequence[is_made]))
    cell = np.searchsorted(borders, made, side="right")
    forward = _most_frequent(number[is_made], cell[is_made], len(start))
    inside = is_made & (cell == forward[number])
    first_made = np.full(len(start), np.iinfo(np.int64).max)
    np.minimum.at(first_made, number[inside], made[inside])
    return Graph(borders, np.searchsorted(borders, start, side="right"), forward, first_made)


def _makers(trace: Trace, node: Int) -> tuple[Int, Int]:
    """(event row of the op that made each node, its sequence number); -1 where it is not recorded.

    Nodes that the engine itself made, when it recomputed a forward, have no maker.
    """
    events, ops = trace.arrays, trace.tables["ops"]
    row, sequence, thread = (ops.array(name) for name in ("event_id", "sequence", "forward_thread"))
    maker_of = forward_ops(row, sequence, thread, events.tid[row], events.start[row])
    maker_of[lookup(in_autograd(trace), maker_of, False)] = -1
    index = events.places(row)[node]
    return lookup(maker_of, index, -1), lookup(sequence, index, -1)


def _begins(start: Int, made: Int, is_made: Bool, sequence: Int, cuts: Int) -> Bool:
    """With which of the nodes, in order of time, a backward begins.

    The engine runs the nodes of a graph from the highest number down, so that a number above the first
    one belongs to the next graph, also where nothing on the host separates the two.
    """
    run = np.searchsorted(np.sort(np.concatenate((cuts, made[is_made]))), start, side="right")
    width = int(sequence.max()) + 2
    level = run * width + np.where(is_made, sequence + 1, 0)
    highest = np.append(-1, np.maximum.accumulate(level)[:-1])
    begins: Bool = is_made & (level > highest) & (highest > run * width)
    begins |= np.append(True, np.diff(run) > 0)
    return begins


def _next_forwards(borders: Int, number: Int, made: Int, sequence: Int) -> Int:
    """Borders between forwards that nothing else separates: of several graphs that one cell made.

    Args:
        borders: of the cells.
        number: of the backward, of each node that a host op made.
        made: when that op began.
        sequence: number of the node.
    """
    cell = np.searchsorted(borders, made, side="right")
    main = _most_frequent(number, cell, int(number.max()) + 1)[number] == cell
    number, made, sequence, cell = (values[main] for values in (number, made, sequence, cell))
    graphs, number = np.unique(number, return_inverse=True)
    begin, lowest, graph_cell = (np.full(len(graphs), np.iinfo(np.int64).max) for _ in range(3))
    highest = np.full(len(graphs), -1)
    np.minimum.at(begin, number, made)
    np.minimum.at(lowest, number, sequence)
    np.maximum.at(highest, number, sequence)
    graph_cell[number] = cell
    order = np.lexsort((lowest, graph_cell))
    begin, lowest, highest, graph_cell = (values[order] for values in (begin, lowest, highest, graph_cell))
    # Two backwards of one forward have some of its nodes each: their numbers overlap.
    following: Int = begin[1:][(np.diff(graph_cell) == 0) & (lowest[1:] > highest[:-1])]
    return following


def _most_frequent(group: Int, values: Int, count: int) -> Int:
    """The value that each group has most often, the lowest of a tie; -1 for groups without values."""
    pairs, times = np.unique(np.stack((group, values)), axis=1, return_counts=True)
    order = np.lexsort((-pairs[1], times, pairs[0]))
    result = np.full(count, -1, dtype=np.int64)
    result[pairs[0][order]] = pairs[1][order]
    return result

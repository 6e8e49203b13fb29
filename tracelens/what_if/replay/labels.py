"""Names of the nodes of a graph."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracelens.arrays import Int, lookup
from tracelens.table import Coded
from tracelens.trace import enclosing_op
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
    texts: list[list[str]] = []
    classes: list[list[str]] = []
    name, category = (np.zeros(len(graph), dtype=np.int64) for _ in range(2))
    rows = []
    for nodes, trace in zip(graph.of_rank, graph.run.traces, strict=True):
        rank_nodes = nodes[graph.kind[nodes] != Node.MEET]
        events, work = trace.arrays, trace.work
        event, work_row = graph.event[rank_nodes], graph.work[rank_nodes]
        around = trace.once(enclosing_op)[event]
        name[rank_nodes] = events.name[np.where((work_row < 0) & (around >= 0), around, event)]
        texts.append(events.names)
        category[rank_nodes] = lookup(work.category, work_row, len(work.categories))
        classes.append([*work.categories, ""])
        rows.append(rank_nodes)
    meetings = np.flatnonzero(graph.kind == Node.MEET)
    collectives = [collective.collective for collective in recorded.collectives.matched]
    known = list(dict.fromkeys(collectives))
    code = np.array([known.index(text) for text in collectives], dtype=np.int64)
    name[meetings] = code[graph.collective[meetings]]
    rows.append(meetings)
    order = np.concatenate(rows)
    return Labels(
        _merged([*texts, known], name, rows, order),
        _merged([*classes, ["communication"]], category, rows, order),
    )


def _merged(values: list[list[str]], codes: Int, rows: list[Int], order: Int) -> Coded:
    """One column over all nodes from one per part."""
    coded = Coded.concat([Coded(codes[part], texts) for part, texts in zip(rows, values, strict=True)])
    merged = np.empty(len(codes), dtype=np.int64)
    merged[order] = coded.codes
    return Coded(merged, coded.values)

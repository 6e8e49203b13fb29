"""What the nodes of a graph are called."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracelens.arrays import Int
from tracelens.table import Coded, recode
from tracelens.trace import enclosing_op
from tracelens.what_if.graph import MEET, Recorded


class Labels(NamedTuple):
    """Names of all nodes, by dictionary.

    Attributes:
        name: of work its kernel or op, of a meeting its collective, of a host's point the op around it, else
            the call or mark itself.
        category: kernel class of work and of a collective's kernels, "communication" of a meeting, else "".
    """

    name: Coded
    category: Coded


def labels(recorded: Recorded) -> Labels:
    """The names of all nodes."""
    graph = recorded.graph
    texts: list[list[str]] = []
    classes: list[list[str]] = []
    name, category = (np.zeros(len(graph), dtype=np.int64) for _ in range(2))
    rows = []
    for nodes, trace in zip(graph.of_rank, graph.run.traces, strict=True):
        mine = nodes[graph.kind[nodes] != MEET]
        events, work = trace.arrays, trace.work
        around = trace.once(enclosing_op)[graph.event[mine]]
        place = graph.work[mine]
        shown = np.where((place < 0) & (around >= 0), around, graph.event[mine])
        name[mine] = events.name[shown]
        texts.append(events.names)
        none = len(work.categories)
        category[mine] = np.where(place >= 0, work.category[np.maximum(place, 0)], none)
        classes.append([*work.categories, ""])
        rows.append(mine)
    meetings = np.flatnonzero(graph.kind == MEET)
    collectives = [one.collective for one in recorded.exchanges.instances]
    known = list(dict.fromkeys(collectives))
    code = {text: number for number, text in enumerate(known)}
    of_instance = np.array([code[text] for text in collectives], dtype=np.int64)
    name[meetings] = of_instance[graph.instance[meetings]] if len(meetings) else 0
    rows.append(meetings)
    order = np.concatenate(rows)
    return Labels(
        _whole([*texts, known], name, rows, order),
        _whole([*classes, ["communication"]], category, rows, order),
    )


def _whole(values: list[list[str]], codes: Int, rows: list[Int], order: Int) -> Coded:
    """One column over all nodes from one a part."""
    found = recode(values, [codes[part] for part in rows])
    whole = np.empty(len(codes), dtype=np.int64)
    whole[order] = found.codes
    return Coded(whole, found.values)

"""Scenario `without=ANNOTATION`: the step without one part of the program."""

from fnmatch import fnmatchcase

import numpy as np

from tracelens.arrays import Int, lookup
from tracelens.devices import Device
from tracelens.table import nearest
from tracelens.trace import Trace
from tracelens.what_if import Edit, Node, NotApplicable, ScenarioContext, scenario


def annotation_around(trace: Trace, device: Device | None) -> tuple[Int, list[str]]:
    """Which annotation launched each kernel and copy, and their names."""
    events, work = trace.arrays, trace.work
    annotation = nearest(events.parent, events.depth, events.where("annotation"))
    around = lookup(annotation, work.host_call, -1)
    rows, code = np.unique(around[around >= 0], return_inverse=True)
    number = np.full(len(around), -1)
    number[around >= 0] = code
    return number, [events.names[name] for name in events.name[rows]]


@scenario("without", argument="=ANNOTATION", usual=(), reads=(annotation_around,))
def without(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """GPU work launched in an annotation takes no time."""
    graph, removed = context.gpu_graph(), 0
    for rank, (number, names) in enumerate(context.read(annotation_around)):
        matches = np.array([fnmatchcase(name, argument) for name in names], dtype=bool)
        nodes = graph.nodes(rank, Node.WORK)
        nodes = nodes[lookup(matches, number[graph.work[nodes]], False)]
        edit.dur[nodes] = 0
        removed += len(nodes)
    if not removed:
        raise NotApplicable(f"no GPU work in an annotation {argument!r}")
    return f"{removed:,} kernels and copies take no time; the host still launches them"

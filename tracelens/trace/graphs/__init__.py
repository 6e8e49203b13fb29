"""What graphs replay, attributed: ops, shapes, modules and scopes of the calls that were captured.

nodes        graphs as sequences of nodes: captured, run eagerly, replayed
alignment    which node of one is which node of another
edits        the pairs that hold however the two came to differ
unnamed      captures without kernel names
streams      replays on several streams in the order of the program
padding      the batch size of captures and steps, by their labels
sizes        the same by grids
attribution  which template each replay is of
splice       copies of the template's host events under the graph launch
collectives  records of the collectives among them
twins        runs that are compared, each as the twin of the other
"""

from tracelens.trace.graphs.attribution import attributed
from tracelens.trace.graphs.nodes import (
    batches,
    captures,
    is_unattributed,
    launched_by_graph,
    replays,
)
from tracelens.trace.graphs.padding import UNKNOWN, Size
from tracelens.trace.graphs.twins import with_twin

__all__ = [
    "UNKNOWN",
    "Size",
    "attributed",
    "batches",
    "captures",
    "is_unattributed",
    "launched_by_graph",
    "replays",
    "with_twin",
]

"""What graphs replay, attributed: ops, shapes, modules and scopes of the calls that were captured.

nodes        graphs as sequences of nodes: captured, run eagerly, replayed; and their batch sizes
alignment    which node of one is which node of another
attribution  which template each replay is of; runs that are compared, each as the twin of the other
splice       copies of the template's host events and collectives under the graph launch
"""

from tracelens.trace.graphs.attribution import attributed, with_twin
from tracelens.trace.graphs.nodes import (
    UNKNOWN,
    Size,
    batches,
    captures,
    replays,
)

__all__ = [
    "UNKNOWN",
    "Size",
    "attributed",
    "batches",
    "captures",
    "replays",
    "with_twin",
]

"""What graphs replay, attributed: ops, shapes, modules and scopes of the calls that were captured.

nodes        graphs as sequences of nodes: captured, run eagerly, replayed
alignment    which node of one is which node of another
attribution  which template each replay is of
splice       copies of the template's host events under the graph launch
"""

from tracelens.trace.graphs.attribution import attributed
from tracelens.trace.graphs.nodes import GRAPH_CALL, captures, is_unattributed, replays

__all__ = ["GRAPH_CALL", "attributed", "captures", "is_unattributed", "replays"]

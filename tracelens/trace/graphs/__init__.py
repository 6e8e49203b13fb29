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
"""

from tracelens.trace.graphs.attribution import attributed
from tracelens.trace.graphs.nodes import GRAPH_CALL, captures, is_unattributed, replays
from tracelens.trace.graphs.padding import UNKNOWN, Size

__all__ = ["GRAPH_CALL", "UNKNOWN", "Size", "attributed", "captures", "is_unattributed", "replays"]

"""Planning before a run: does it fit, how large is the bubble, how long does a step take.

- `memory`: bytes per GPU of a model and a layout, by component and pipeline rank; `search` ranks layouts.
- `bubble` and `pipeline`: idle time of pipeline stages, in closed form and by simulation.
- `bounds`: the least time of collectives and the GEMMs next to them, and how close a run comes.

Each is a function in the module of its name and returns a `tracelens.table.Result`.
"""

from tracelens.planner.bubble import TABLES as BUBBLE_TABLES
from tracelens.planner.bubble import Batch, bubble
from tracelens.planner.collectives import Rates, all_to_all_seconds, expected_maximum, ring_seconds

__all__ = [
    "BUBBLE_TABLES",
    "Batch",
    "Rates",
    "all_to_all_seconds",
    "bubble",
    "expected_maximum",
    "ring_seconds",
]

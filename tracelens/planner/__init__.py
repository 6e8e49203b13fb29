"""Before a run: will it fit, how large is its bubble. After a run: what it would gain from a change.

- `memory`: bytes a GPU, by component and pipeline rank, of a model and a layout; `search` walks layouts.
- `bubble` and `pipeline`: idle stages by formula, and by simulating a schedule.
- `whatif`: the step time of a recorded run if something in it were otherwise.

Each is a function of the module of its name and returns a `tracelens.table.schema.Result`.
"""

from tracelens.planner.bubble import Batch, bubble
from tracelens.planner.collectives import Rates, all_to_all_seconds, ring_seconds

__all__ = ["Batch", "Rates", "all_to_all_seconds", "bubble", "ring_seconds"]

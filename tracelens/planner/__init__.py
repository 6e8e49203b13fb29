"""Planning before a run: does it fit, how large is the bubble, how long does a step take.

- `memory`: bytes per GPU of a model and a layout, by component and pipeline rank; `search` ranks layouts.
- `bubble` and `pipeline`: idle time of pipeline stages, in closed form and by simulation.
- `bounds`: the least time of collectives and the GEMMs next to them, and how close a run comes.

Each is a function in the module of its name and returns a `tracelens.table.Result`.
"""

from tracelens.planner.bubble import TABLES as BUBBLE_TABLES
from tracelens.planner.bubble import PipelineSizes, bubble, fractions, in_flight
from tracelens.planner.collectives import (
    DEEPEP_CHUNK,
    AlphaBeta,
    LinkRates,
    StepLatency,
    all_reduce_seconds,
    all_to_all_seconds,
    broadcast_seconds,
    deepep_seconds,
    expected_maximum,
    hierarchical_all_reduce,
    measured_time,
    modeled_seconds,
    one_shot_all_reduce,
    pair_seconds,
    ring_all_reduce,
    ring_seconds,
    traffic_seconds,
    two_shot_all_reduce,
)
from tracelens.planner.distinct import balanced_spread, routed_imbalance, routed_spread

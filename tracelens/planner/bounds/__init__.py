"""Speed of light: what links, memory and matrix units allow communication and the GEMMs beside it at least.

    bounds(Platform(device("mi300x")))
    trace_bounds(run, Platform(device("h200")))

- `model`: the platform, what operations compute and move, their bounds, and all-reduce algorithms.
- `measured`: the collectives of a recorded run and the GEMMs next to them.
"""

from tracelens.planner.bounds.measured import trace_bounds, traced_device
from tracelens.planner.bounds.model import (
    HELP,
    TABLES,
    TRACE_TABLES,
    Operation,
    Platform,
    algorithms,
    all_gather_gemm,
    bound,
    bounds,
    fastest,
    gemm_reduce_scatter,
    moe_all_to_all,
)

"""Speed of light: what links, memory and matrix units allow communication and the GEMMs beside it at least.

    bounds(Platform(device("mi300x")))
    trace_bounds(run, Platform(device("h200")))

- `platform`: the machine: device, nodes, rates and step latencies.
- `operations`: what an operation computes and moves, and its bound by resource.
- `challenge`: the shapes of the AMD Developer Challenge 2025, and published times.
- `all_reduce`: algorithms of an all-reduce by message size, and where one overtakes the other.
- `placement`, `transfers`, `pairs`: the collectives of a recorded run and the GEMMs next to them.
- `model`, `measured`, `tables`: the results.
"""

from tracelens.planner.bounds.measured import trace_bounds, traced_device
from tracelens.planner.bounds.model import bounds
from tracelens.planner.bounds.operations import (
    Bound,
    Operation,
    all_gather_gemm,
    bound,
    gemm_reduce_scatter,
    moe_all_to_all,
)
from tracelens.planner.bounds.platform import HELP, Platform
from tracelens.planner.bounds.tables import TABLES, TRACE_TABLES

__all__ = [
    "HELP",
    "TABLES",
    "TRACE_TABLES",
    "Bound",
    "Operation",
    "Platform",
    "all_gather_gemm",
    "bound",
    "bounds",
    "gemm_reduce_scatter",
    "moe_all_to_all",
    "trace_bounds",
    "traced_device",
]

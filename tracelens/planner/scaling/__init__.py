"""Throughput over the ranks that share the experts, and where the time of a step goes.

scaling(Request(config, eps=(8, 16, 32, 64), dispatches=("alltoall", "deepep")), device("mi300x"))
"""

from tracelens.planner.scaling.scaling import (
    DISPATCHES,
    PARTS,
    TABLES,
    DispatchName,
    Request,
    scaling,
)

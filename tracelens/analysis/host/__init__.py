"""The host: idle GPU time and what the host did meanwhile, launches, blocking calls."""

from tracelens.analysis.host.idle import (
    CAUSES,
    CODE,
    GAP_NS,
    HOST_CAUSES,
    Gaps,
    IdlePieces,
    find_gaps,
    host_names,
    idle_pieces,
    idle_time,
    threads,
)
from tracelens.analysis.host.launches import (
    GARBAGE,
    SYNCHRONIZE,
    blocking_calls,
    launch_bound,
    named,
    reads,
    waiting_calls,
)

__all__ = [
    "CAUSES",
    "CODE",
    "GAP_NS",
    "GARBAGE",
    "HOST_CAUSES",
    "SYNCHRONIZE",
    "Gaps",
    "IdlePieces",
    "blocking_calls",
    "find_gaps",
    "host_names",
    "idle_pieces",
    "idle_time",
    "launch_bound",
    "named",
    "reads",
    "threads",
    "waiting_calls",
]

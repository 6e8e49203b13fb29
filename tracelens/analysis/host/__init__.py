"""The host: idle GPU time and what the host did meanwhile, launches, blocking calls."""

from tracelens.analysis.host.causes import CAUSES, CODE, HOST_CAUSES, IdlePieces, idle_pieces, idle_time
from tracelens.analysis.host.gaps import GAP_NS, Gaps, find_gaps
from tracelens.analysis.host.idle import host_names
from tracelens.analysis.host.launches import launch_bound
from tracelens.analysis.host.reads import reads
from tracelens.analysis.host.stacks import threads
from tracelens.analysis.host.waits import (
    GARBAGE,
    SYNCHRONIZE,
    blocking_calls,
    named,
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

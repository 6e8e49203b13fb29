"""The host: idle GPU time and what the host did meanwhile, launches, blocking calls."""

from tracelens.analysis.host.idle import (
    CAUSES,
    GAP_NS,
    GARBAGE,
    Explained,
    Gaps,
    blocking_calls,
    causes,
    find_gaps,
    host_names,
    named,
    waiting_calls,
)
from tracelens.analysis.host.launches import launch_bound
from tracelens.analysis.host.reads import reads
from tracelens.analysis.host.stacks import calls, longest, threads

__all__ = [
    "CAUSES",
    "GAP_NS",
    "GARBAGE",
    "Explained",
    "Gaps",
    "blocking_calls",
    "calls",
    "causes",
    "find_gaps",
    "host_names",
    "launch_bound",
    "longest",
    "named",
    "reads",
    "threads",
    "waiting_calls",
]

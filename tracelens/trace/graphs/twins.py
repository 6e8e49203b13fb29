"""Runs that are compared, each as the twin of the other."""

from __future__ import annotations

from tracelens.trace.graphs.attribution import attributed
from tracelens.trace.graphs.nodes import is_unattributed
from tracelens.trace.run import Run


def with_twin(run: Run, other: Run) -> Run:
    """The run; ranks whose graph launches are attributed to nothing have those of the other run as twins."""
    if not any(map(is_unattributed, run.traces)):
        return run
    twins = {trace.meta.rank: trace for trace in other.traces}
    return Run(
        tuple(
            attributed(trace, (), [twins.get(trace.meta.rank, other.traces[0])])
            if is_unattributed(trace)
            else trace
            for trace in run.traces
        )
    )

"""The trace model: one rank (`Trace`) and all ranks of a job (`Run`)."""

from tracelens.trace.activities import Scope, Work, gpu_work
from tracelens.trace.arguments import (
    argument_dtypes,
    argument_lists,
    argument_texts,
    decoded,
    describe,
    element_count,
)
from tracelens.trace.callstack import enclosing_op, nest
from tracelens.trace.classify import OPAQUE, WORK_KINDS, classes, collective_of, collectives
from tracelens.trace.cpu_only import Stack, host_work
from tracelens.trace.grouping import rows_by_code
from tracelens.trace.intervals import (
    Union,
    both,
    clip,
    cut,
    difference,
    exclusive,
    intersection,
    interval_of,
    shares,
    union,
)
from tracelens.trace.links import (
    PASSED_THROUGH,
    Calls,
    Flows,
    find_launches,
    find_ops,
    forward_ops,
    is_linked,
    launches_by_flow,
)
from tracelens.trace.names import STEP_MARK, matching, wildcards
from tracelens.trace.pace import PacePart, mean_step_ns, settled
from tracelens.trace.run import Run, check_ranks, make_run, named_ranks
from tracelens.trace.steps import Steps, is_step, launched_in, select_step, steps_of
from tracelens.trace.tables import (
    COLLECTIVES,
    EVENT_KINDS,
    EVENTS,
    GPU_KINDS,
    GPU_SIGNS,
    LINKS,
    OPS,
    STACK_KINDS,
)
from tracelens.trace.trace import Events, Trace, TraceMeta, TraceWindow

__all__ = [
    "COLLECTIVES",
    "EVENTS",
    "EVENT_KINDS",
    "GPU_KINDS",
    "GPU_SIGNS",
    "LINKS",
    "OPAQUE",
    "OPS",
    "PASSED_THROUGH",
    "STACK_KINDS",
    "STEP_MARK",
    "WORK_KINDS",
    "Calls",
    "Events",
    "Flows",
    "PacePart",
    "Run",
    "Scope",
    "Stack",
    "Steps",
    "Trace",
    "TraceMeta",
    "TraceWindow",
    "Union",
    "Work",
    "argument_dtypes",
    "argument_lists",
    "argument_texts",
    "both",
    "check_ranks",
    "classes",
    "clip",
    "collective_of",
    "collectives",
    "cut",
    "decoded",
    "describe",
    "difference",
    "element_count",
    "enclosing_op",
    "exclusive",
    "find_launches",
    "find_ops",
    "forward_ops",
    "gpu_work",
    "host_work",
    "intersection",
    "interval_of",
    "is_linked",
    "is_step",
    "launched_in",
    "launches_by_flow",
    "make_run",
    "matching",
    "mean_step_ns",
    "named_ranks",
    "nest",
    "rows_by_code",
    "select_step",
    "settled",
    "shares",
    "steps_of",
    "union",
    "wildcards",
]

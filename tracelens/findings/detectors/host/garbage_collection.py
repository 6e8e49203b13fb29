"""Python's garbage collector stops the host in the middle of a step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tracelens.analysis.host import GARBAGE
from tracelens.findings.detectors.detector import Detection, Outcome, Quantity, detector
from tracelens.findings.rank_context import RankContext
from tracelens.trace import Union, intersection, steps_of, union
from tracelens.units import duration

_EVENT = "Python GC"
"""What torch calls a collection; the other names that GARBAGE knows are calls of the program itself."""


@detector(
    "garbage_collection",
    scenario="no_garbage_collection",
    title="Garbage collection stalls the host",
    measures={
        "collecting": "host time in collections, per step",
        "collections per step": "collections that reach into a step",
        "collections called by the program": "share that Python frames show to be called, as by gc.collect()",
        "longest collection": "longest one, whole",
        "GPU idle while collecting": "idle time with this cause, per step",
        "step-time variation": "(longest - shortest step) / mean step, with two steps or more",
    },
    threshold="one collection that reaches into the steps",
    limits="Needs a recording with collections: by `tracelens.record`, or torch's record_python_gc_info.",
)
def garbage_collection(context: RankContext) -> Outcome:
    """Python's garbage collector runs during steps."""
    if not len(context.work.event):
        return "no GPU work"
    collections = _within(context, lambda name: bool(GARBAGE.search(name)))
    count = len(collections.start)
    if not count:
        return (
            "no garbage collection in the steps; to record it, use torch's profiler with with_stack and "
            "record_python_gc_info (experimental_config)"
        )
    during = intersection(collections, Union(*(np.array([edge]) for edge in context.host_window)))
    idle = context.idle_by("garbage collection")
    where = union(idle.start, idle.end)
    calls = _within(context, lambda name: bool(GARBAGE.search(name)) and not name.startswith(_EVENT))
    # Who called is known from Python frames only; tracelens.record marks collections without them.
    framed = bool(context.trace.arrays.where("python").any())
    called = int((calls.covered(collections.start, collections.end) > 0).sum())
    by = f" ({called / count:.0%} called by the program)" if framed else ""
    longest = int((collections.end - collections.start).max())
    variation = _variation(context)
    quantities = [
        Quantity("collecting", context.per_step(during.total), "ns"),
        Quantity("collections per step", context.per_step(count), "count"),
        *([Quantity("collections called by the program", called / count, "fraction")] if framed else []),
        Quantity("longest collection", longest, "ns"),
        Quantity("GPU idle while collecting", context.per_step(where.total), "ns"),
    ]
    steps = ""
    if variation is not None:
        quantities.append(Quantity("step-time variation", variation, "ratio"))
        steps = f"; step times spread by {variation:.1%}"
    return Detection(
        tuple(quantities),
        context.per_step(where.total),
        where,
        f"{context.per_step(count):.1f} collections per step{by} stall the host for "
        f"{duration(context.per_step(during.total))} (longest {duration(longest)}); the GPU idles for "
        f"{duration(context.per_step(where.total))} of that{steps}",
        "high",
    )


def _within(context: RankContext, is_wanted: Callable[[str], bool]) -> Union:
    """When Python functions or scopes of these names ran, whole, where they reach into the steps.

    Collections do not nest, so of the frames around one (the call, torch's own event) only the outer counts.
    """
    events = context.trace.arrays
    low, high = context.host_window
    rows = np.flatnonzero(events.named(is_wanted) & events.where("python", "annotation"))
    rows = rows[(events.end[rows] > low) & (events.start[rows] < high)]
    return union(events.start[rows], events.end[rows])


def _variation(context: RankContext) -> float | None:
    """Longest less shortest step, of a mean step; None where there are no two steps."""
    steps = np.diff(steps_of(context.trace).only_whole().edges)
    return float((steps.max() - steps.min()) / steps.mean()) if len(steps) > 1 else None

"""Python's garbage collector stops the host in the middle of a step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tracelens.analysis.host import GARBAGE
from tracelens.analysis.stragglers import duration
from tracelens.findings.detectors.detector import Detection, Found, Quantity, detector
from tracelens.findings.rank_context import RankContext
from tracelens.trace import Union, difference, find_steps, intersection, union

_EVENT = "Python GC"
"""What torch calls a collection; the other names that GARBAGE knows are calls of the program itself."""


@detector(
    "garbage_collection",
    title="Garbage collection stalls the host",
    remedy="Collect by hand: gc.disable(), gc.freeze() once the model is built, and gc.collect() every N "
    "steps, in the same step on all ranks, so that they pause together (Megatron: --manual-gc with "
    "--manual-gc-interval N).",
)
def garbage_collection(scene: RankContext) -> Found:
    """Python's garbage collector runs inside of steps."""
    if not len(scene.work.event):
        return "no GPU work"
    collections = _within(scene, lambda name: bool(GARBAGE.search(name)))
    count = len(collections.start)
    if not count:
        return (
            "no garbage collection in the steps; torch's profiler records it with with_stack and, in its "
            "experimental_config, record_python_gc_info"
        )
    low, high = scene.window
    window = Union(np.array([low]), np.array([high]))
    during = intersection(collections, window)
    where = intersection(during, difference(window, scene.busy))
    calls = _within(scene, lambda name: bool(GARBAGE.search(name)) and not name.startswith(_EVENT))
    # Who called is known from Python frames only; tracelens.record marks collections without them.
    framed = bool(scene.trace.arrays.where("python").any())
    called = int((calls.covered(collections.start, collections.end) > 0).sum())
    by = f" ({called / count:.0%} called by the program)" if framed else ""
    longest = int((collections.end - collections.start).max())
    variation = _variation(scene)
    quantities = [
        Quantity("collecting", scene.per_step(during.total), "ns"),
        Quantity("collections a step", scene.per_step(count), "count"),
        *([Quantity("collections called by the program", called / count, "fraction")] if framed else []),
        Quantity("longest collection", longest, "ns"),
        Quantity("GPU idle while collecting", scene.per_step(where.total), "ns"),
    ]
    steps = ""
    if variation is not None:
        quantities.append(Quantity("step-time variation", variation, "ratio"))
        steps = f"; longest and shortest step are {variation:.1%} of a step apart"
    return Detection(
        tuple(quantities),
        scene.per_step(where.total),
        where,
        f"{scene.per_step(count):.1f} collections a step{by} hold the host for "
        f"{duration(scene.per_step(during.total))} (the longest {duration(longest)}); the GPU is idle for "
        f"{duration(scene.per_step(where.total))} of that{steps}",
        "high",
    )


def _within(scene: RankContext, chosen: Callable[[str], bool]) -> Union:
    """When Python functions or scopes of these names ran, whole, where they reach into the steps.

    Collections do not nest, so of the frames around one (the call, torch's own event) only the outer counts.
    """
    events = scene.trace.arrays
    codes = [code for code, name in enumerate(events.names) if chosen(name)]
    if not codes:
        return union(*np.zeros((2, 0), dtype=np.int64))
    low, high = scene.window
    rows = np.flatnonzero(np.isin(events.name, codes) & events.where("python", "annotation"))
    rows = rows[(events.end[rows] > low) & (events.start[rows] < high)]
    return union(events.start[rows], events.end[rows])


def _variation(scene: RankContext) -> float | None:
    """Longest less shortest step, of a mean step; None where there are no two steps."""
    edges = find_steps(scene.trace, scene.trace.work).edges
    steps = np.diff(edges[(edges >= scene.window[0]) & (edges <= scene.window[1])])
    return float((steps.max() - steps.min()) / steps.mean()) if len(steps) > 1 else None

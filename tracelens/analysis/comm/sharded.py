"""Sharded data parallelism: when the parameters of a module are gathered."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from tracelens.arrays import Bool, Int, lookup
from tracelens.table import nearest
from tracelens.trace import Trace, matching, steps_of

GATHERS = re.compile(r"FSDP::all_gather(?:_copy_out)?(?: \(.+\))?$")
"""Marks of FSDP2 around the all-gather of a module's parameters, and around their way into the module."""


class Regathers(NamedTuple):
    """What a rank gathers again in a step."""

    rows: Int  # activities, positions in the trace's `work`
    event: Int  # calls, rows in the trace's events


def regathers(trace: Trace) -> Regathers:
    """What gathers parameters of modules that were gathered before in the same step."""
    events, work = trace.arrays, trace.work
    gather = np.flatnonzero(matching(events.names, GATHERS)[events.name] & events.where("annotation"))
    gather = gather[np.argsort(events.start[gather], kind="stable")]
    none = np.zeros(0, dtype=np.int64)
    if not len(gather):
        return Regathers(none, none)
    # The first of each name in each step is that of the forward pass.
    step = np.searchsorted(steps_of(trace).marks, events.start[gather], side="right")
    _, first = np.unique(np.stack((step, events.name[gather])), axis=1, return_index=True)
    again = np.zeros(len(events.start), dtype=bool)
    again[np.delete(gather, first)] = True
    inside: Bool = nearest(events.parent, events.depth, again) >= 0
    return Regathers(np.flatnonzero(lookup(inside, work.launch, False)), np.flatnonzero(inside))

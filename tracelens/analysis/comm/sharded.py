"""Sharded data parallelism: when the parameters of a module are gathered."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from tracelens.arrays import Bool, Int, lookup
from tracelens.table import codes, nearest
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
    # Of a module, they are for a forward and a backward pass in turn, in each micro-batch of a step.
    step = np.searchsorted(steps_of(trace).marks, events.start[gather], side="right")
    in_order = np.lexsort((events.start[gather], events.name[gather], step))
    group, _ = codes(step[in_order], events.name[gather][in_order])
    position = np.arange(len(gather)) - np.searchsorted(group, group)
    again = np.zeros(len(events.start), dtype=bool)
    again[gather[in_order[position % 2 == 1]]] = True
    inside: Bool = nearest(events.parent, events.depth, again) >= 0
    return Regathers(np.flatnonzero(lookup(inside, work.launch, False)), np.flatnonzero(inside))

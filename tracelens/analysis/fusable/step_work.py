"""The GPU work of the whole steps of one rank: what finders of avoidable work look at."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from tracelens.analysis.host import CODE, Gaps, IdlePieces, find_gaps, idle_pieces
from tracelens.analysis.roofline import OpCalls
from tracelens.arrays import Bool, Int, lookup
from tracelens.devices import Device
from tracelens.trace import Trace, Union, Work, steps_of, union


class StepWork:
    """One rank's work in its whole steps, with what several finders need of it.

    Attributes:
        trace: all that it recorded.
        rows: positions in `trace.work` of the work that started in a step.
        work: that work, in order of start.
        device: whose figures count, None where it is not known.
        window: first and last time of the steps on the GPU, ns.
        host_window: first and last time of the steps on the host, ns.
        steps: number of steps; 1 where they are not marked.
    """

    def __init__(self, trace: Trace, device: Device | None) -> None:
        self.trace, self.device = trace, device
        work = trace.work
        steps = steps_of(trace)
        inner = steps.whole
        self.steps = max(len(inner), 1)
        low, high = (inner[0], inner[-1] + 1) if inner else (0, 0)
        self.window = int(steps.edges[low]), int(steps.edges[high])
        self.host_window = int(steps.marks[low]), int(steps.marks[high])
        self.rows = np.flatnonzero((work.start >= self.window[0]) & (work.start <= self.window[1]))
        self.work: Work = work.take(self.rows)

    @property
    def step_ns(self) -> float:
        return (self.window[1] - self.window[0]) / self.steps

    def per_step(self, total: float) -> float:
        """A total of the recording, for one step."""
        return total / self.steps

    @cached_property
    def caller(self) -> Int:
        """The event row of the call behind each piece of work, see Work.host_call."""
        return self.work.host_call

    @cached_property
    def called(self) -> Int:
        """When each piece of work was called by the host, ns; -1 where that is not known."""
        return lookup(self.trace.arrays.start, self.caller, -1)

    @cached_property
    def busy(self) -> Union:
        return self.work.union()

    @cached_property
    def gaps(self) -> Gaps:
        """All gaps in the GPU work of the steps; positions are in `work`."""
        return self.trace.once(_gaps)

    @cached_property
    def idle(self) -> IdlePieces:
        """These gaps by cause, as analyzer `idle` tells them."""
        return self.trace.once(_idle)

    def idle_by(self, *causes: str) -> IdlePieces:
        """The idle time of some causes."""
        return self.idle.take(np.isin(self.idle.cause, [CODE[name] for name in causes]))

    def during(self, mask: Bool | Int) -> Union:
        """When the work under a mask ran."""
        return union(self.work.start[mask], self.work.end[mask])

    @cached_property
    def ops(self) -> OpCalls:
        """The recorded arguments of the ops."""
        return self.trace.once(OpCalls)

    def op_names(self) -> Int:
        """Code into the events' names of each piece of work's op, -1 for none."""
        return lookup(self.trace.arrays.name, self.work.op, -1)


def _gaps(trace: Trace) -> Gaps:
    step = StepWork(trace, None)
    return find_gaps(step.work, np.array(step.window))


def _idle(trace: Trace) -> IdlePieces:
    """Kept with the trace, as it takes long and no device changes it."""
    step = StepWork(trace, None)
    return idle_pieces(trace, step.work, step.gaps)

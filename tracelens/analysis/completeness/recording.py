"""One rank's recording as the checks see it: GPU work, and the calls that launch it."""

from __future__ import annotations

import re
from functools import cached_property

import numpy as np

from tracelens.arrays import Bool, Int, lookup
from tracelens.trace import Steps, Trace, Union, Work, matching, steps_of

KERNEL_CALLS = re.compile(r"^(?:cuda|cu|hip)(?:Ext)?(?:Module)?Launch(?:Cooperative)?Kernel")
GRAPH_CALLS = re.compile(r"^(?:cuda|cu|hip)GraphLaunch")
COPY_CALLS = re.compile(r"^(?:cuda|hip)Memcpy(?!.*Symbol)|^cuMemcpy")
DEVICE_SYNCS = re.compile(r"^(?:cuda|hip)DeviceSynchronize|^cuCtxSynchronize")
SYNCS = re.compile(r"^(?:cuda|hip|cu)(?:Stream|Device|Event|Ctx)Synchronize")
_CAPTURE_BEGINS = re.compile(r"^(?:cuda|hip|cu)StreamBeginCapture")
_CAPTURE_ENDS = re.compile(r"^(?:cuda|hip|cu)StreamEndCapture")


class Recording:
    """A trace with all its steps, whichever step was selected."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace.whole
        self.meta = trace.meta
        self.events = self.trace.arrays
        self.work: Work = self.trace.work
        self.correlation: Int = self.trace.tables["events"].array("correlation_id")
        self.is_call: Bool = self.events.where("launch")
        self._called: dict[re.Pattern[str], Bool] = {}
        self.origin = int(self.events.start.min())
        self.end = int(self.events.end.max())

    @property
    def recorded_ns(self) -> int:
        return max(self.end - self.origin, 1)

    @cached_property
    def steps(self) -> Steps:
        return steps_of(self.trace)

    @cached_property
    def busy(self) -> Union:
        return self.work.union()

    @cached_property
    def launched(self) -> Int:
        """When the host launched each piece of work, ns; -1 where its call is not recorded."""
        return lookup(self.events.start, self.work.launch, -1)

    @cached_property
    def under_graph(self) -> Bool:
        """Which work is part of a graph's replay."""
        return lookup(self.called(GRAPH_CALLS), self.work.launch, False)

    def called(self, pattern: re.Pattern[str]) -> Bool:
        """Which events are calls of the runtime or the driver whose name fits."""
        if pattern not in self._called:
            self._called[pattern] = matching(self.events.names, pattern)[self.events.name] & self.is_call
        return self._called[pattern]

    @cached_property
    def launch_calls(self) -> Int:
        """Event rows of the calls that must have GPU work, in order of time.

        Left out are what is called while a graph is captured, since nothing runs then; calls inside a call
        with the same correlation; and memsets, which have none where they set no byte.
        """
        events = self.events
        rows = np.flatnonzero(self.called(KERNEL_CALLS) | self.called(GRAPH_CALLS) | self.called(COPY_CALLS))
        outer = events.parent[rows]
        inside = (lookup(self.correlation, outer, -1) == self.correlation[rows]) & (
            self.correlation[rows] > 0
        )
        rows = rows[~inside & ~self._capturing(rows)]
        known = (self.correlation[rows] > 0) | self.has_work[rows]
        rows = rows[known]
        in_order: Int = rows[np.argsort(events.start[rows], kind="stable")]
        return in_order

    @cached_property
    def first_call_id(self) -> int:
        """The lowest id of a recorded call: what was launched before the recording began has a lower one."""
        ids = self.correlation[self.is_call & (self.correlation > 0)]
        return int(ids.min()) if len(ids) else 0

    @cached_property
    def has_work(self) -> Bool:
        """Which events launched recorded GPU work."""
        launched = np.zeros(len(self.events.start), dtype=bool)
        launched[self.work.launch[self.work.launch >= 0]] = True
        ids = self.correlation[self.work.event]
        return launched | (self.is_call & (self.correlation > 0) & np.isin(self.correlation, ids[ids > 0]))

    def _capturing(self, rows: Int) -> Bool:
        """Which calls were made while a graph was captured."""
        start = self.events.start
        begins, ends = (np.sort(start[self.called(pattern)]) for pattern in (_CAPTURE_BEGINS, _CAPTURE_ENDS))
        open_captures = np.searchsorted(begins, start[rows]) - np.searchsorted(ends, start[rows])
        capturing: Bool = open_captures > 0
        return capturing

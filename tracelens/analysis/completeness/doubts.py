"""What can be wrong with a recording, which figures that makes unreliable, and what is checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from msgspec import Struct

from tracelens.arrays import Bool, Int, lookup
from tracelens.table import RANK, Column, Result, Schema
from tracelens.trace import InFlight, Steps, Trace, Union, Work, in_flight_at_start, steps_of, union

COMPLETENESS = "completeness"
"""Name of the analyzer."""


class DoubtKind(Struct, frozen=True):
    """One way in which a recording can be wrong."""

    meaning: str  # what it is
    affects: str  # which figures it makes unreliable, and how
    # how the names of the step metrics begin that cannot be compared; "" for all of them
    metrics: tuple[str, ...]
    advice: str  # what to do about it


_ALL = ("",)
_AGAIN = "record again, with fewer steps or without stacks if the profiler's buffer was full"
DOUBTS: Mapping[str, DoubtKind] = {
    "truncated": DoubtKind(
        "the file ends before the trace does",
        "everything after the cut is missing: steps, counts and totals are too low",
        _ALL,
        "copy or write the file again",
    ),
    "dropped events": DoubtKind(
        "the profiler lost records, or events could not be read",
        "counts and times are too low, and idle time may be lost work",
        _ALL,
        _AGAIN,
    ),
    "clock": DoubtKind(
        "timestamps contradict the order in which work was launched and finished",
        "gaps, overlap, waiting and the causes of idle time are unreliable",
        _ALL,
        "record again; across several hosts check that their clocks are synchronized",
    ),
    "overlapping kernels": DoubtKind(
        "kernels of one stream overlap, which no device allows",
        "kernel durations, totals by kernel and roofline figures are too high",
        ("computation.", "comm.", "exposed_comm.", "category[", "op[", "step.", "busy.", "moe."),
        "record again with another version of the driver or profiler",
    ),
    "missing work": DoubtKind(
        "the GPU seems idle while work is queued or the host waits for it",
        "idle time, and savings from removing it, are too high; busy time and counts are too low",
        _ALL,
        "record again; for graphs, make the profiler trace every node, not the graph as a whole",
    ),
    "missing kernels": DoubtKind(
        "launch calls whose kernels are not recorded",
        "kernel counts and busy time are too low, idle time is too high",
        _ALL,
        _AGAIN,
    ),
    "missing graph kernels": DoubtKind(
        "graph replays with fewer kernels than other replays of the same graph",
        "kernel counts and busy time are too low, idle time is too high",
        _ALL,
        _AGAIN,
    ),
    "short step": DoubtKind(
        "steps with far fewer kernels than the others, although the host did the same work",
        "figures of that step and means over steps are too low",
        _ALL,
        "leave the step out with --step, or record again",
    ),
    "ends early": DoubtKind(
        "the recording of a stream or rank ends before the others",
        "counts and busy time are too low, and other ranks' waiting is unexplained",
        _ALL,
        _AGAIN,
    ),
    "cut": DoubtKind(
        "the recording begins or ends in the middle of work",
        "the first or last step is incomplete; means per step are wrong",
        _ALL,
        "record whole steps, with the profiler's schedule",
    ),
    "missing collectives": DoubtKind(
        "collectives that other ranks recorded, or NCCL kernels without the record of their collective",
        "waiting for other ranks, rates and bytes of communication are incomplete",
        ("comm.", "exposed_comm."),
        _AGAIN,
    ),
    "missing step marks": DoubtKind(
        "step marks that are not recorded",
        "two steps count as one, or lie outside of all steps; means per step are wrong",
        _ALL,
        _AGAIN,
    ),
    "missing links": DoubtKind(
        "kernels without the link to their launch call that others have",
        "these kernels belong to no op, and their step is a guess",
        ("launch.", "op[", "moe.", "kernel.", "step.", "idle."),
        _AGAIN,
    ),
    "missing streams": DoubtKind(
        "streams or threads that all other ranks recorded",
        "counts, busy time and host figures of the rank are too low",
        _ALL,
        _AGAIN,
    ),
    "missing launches": DoubtKind(
        "kernels without a recorded launch call: most of them, or some launched during the recording",
        "these kernels belong to no op, their step is a guess, and causes of idle time are unknown",
        ("launch.", "op[", "moe.", "kernel.", "step.", "idle."),
        _AGAIN,
    ),
}
"""By name, in order of weight."""
DOUBT_TABLE = Schema(
    "Doubts about the recording",
    (
        Column("rank", "int64", doc="missing for the whole job", absent=-1),
        Column(
            "doubt", "category", doc="; ".join(f"{name}: {kind.meaning}" for name, kind in DOUBTS.items())
        ),
        Column("dur_ns", "int64", "ns", "time in doubt"),
        Column("fraction_of_recorded_time", "float64", "fraction", "share of the rank's recorded time"),
        Column("count", "int64", "count", "affected kernels, calls, steps or events"),
        Column(
            "ts_ns",
            "int64",
            "ns",
            "start of the longest stretch, since the rank's first event; missing if unknown",
            absent=-1,
        ),
        Column("evidence", "str", doc="figures that raise the doubt", prose=True),
        Column("affects", "str", doc="the figures it makes unreliable, and how", prose=True),
    ),
    kind="entries",
    doc="Reasons to doubt the figures of this report, by the time they affect.",
)
STRETCHES = Schema(
    "Doubtful stretches",
    (
        RANK,
        Column("doubt", "category", doc="as in `doubts`"),
        Column("local_ts_ns", "int64", "ns", "start, on the rank's own clock"),
        Column("dur_ns", "int64", "ns", "length of the stretch"),
    ),
    detail=True,
    key=(),
)


class Doubt(Struct, frozen=True):
    """One doubt about the recording of a rank."""

    name: str  # one of DOUBTS
    count: int  # of kernels, calls, steps or events concerned
    evidence: str  # the figures that show it
    where: Union  # the doubtful time, ns by the rank's own clock


KERNEL_CALLS = re.compile(r"^(?:cuda|cu|hip)(?:Ext)?(?:Module)?Launch(?:Cooperative)?Kernel")
GRAPH_CALLS = re.compile(r"^(?:cuda|cu|hip)GraphLaunch")
COPY_CALLS = re.compile(r"^(?:cuda|hip)Memcpy(?!.*Symbol)|^cuMemcpy")
DEVICE_SYNCS = re.compile(r"^(?:cuda|hip)DeviceSynchronize|^cuCtxSynchronize")
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
            self._called[pattern] = self.events.fitting(pattern, "launch")
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
        begins, ends = (
            np.sort(events.start[self.called(pattern)]) for pattern in (_CAPTURE_BEGINS, _CAPTURE_ENDS)
        )
        open_captures = np.searchsorted(begins, events.start[rows]) - np.searchsorted(
            ends, events.start[rows]
        )
        known = (self.correlation[rows] > 0) | self.has_work[rows]
        rows = rows[~inside & ~(open_captures > 0) & known]
        in_order: Int = rows[np.argsort(events.start[rows], kind="stable")]
        return in_order

    @cached_property
    def bare(self) -> Bool:
        """Which work nothing links to a call: neither a correlation id nor an arrow."""
        bare: Bool = (self.correlation[self.work.event] <= 0) & (self.work.launch < 0)
        return bare

    @cached_property
    def in_flight(self) -> InFlight:
        """Unrecorded work that the GPU was busy with when the recording began."""
        return self.trace.once(in_flight_at_start)

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


def nowhere() -> Union:
    """Doubtful time that is not known."""
    return Union(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


def over(start: Int | list[int], end: Int | list[int]) -> Union:
    """The time in these intervals."""
    return union(np.asarray(start, dtype=np.int64), np.asarray(end, dtype=np.int64))


def milliseconds(ns: float) -> str:
    """A time for a sentence."""
    return f"{ns / 1e6:,.1f} ms" if ns >= 1e5 else f"{ns / 1e3:,.1f} µs"


def doubtful_time(result: Result, rank: int) -> Union:
    """The doubtful stretches of a rank, ns by its own clock."""
    if "stretches" not in result.data:
        return nowhere()
    table = result.data["stretches"]
    rows = table.array("rank") == rank
    start = table.array("local_ts_ns")[rows]
    return over(start, start + table.array("dur_ns")[rows])


def doubts_within(result: Result, rank: int, where: Union) -> list[str]:
    """The doubts about a rank whose stretches reach into this time, most first."""
    table = result.data["stretches"]
    rows = np.flatnonzero(table.array("rank") == rank)
    start = table.array("local_ts_ns")[rows]
    inside = where.covered(start, start + table.array("dur_ns")[rows])
    total: dict[str, int] = {}
    for name, ns in zip(table.texts("doubt", rows), inside.tolist(), strict=True):
        total[name] = total.get(name, 0) + ns
    return sorted((name for name, ns in total.items() if ns), key=lambda name: -total[name])


def trust(result: Result) -> dict[str, Any]:
    """What a report says of its recording in short: whether it is complete, and the doubts of each rank."""
    doubts: dict[str, list[dict[str, Any]]] = {}
    table = result.data.get("doubts")
    if table is None:
        return {"complete": None, "doubts": doubts}
    columns = {
        name: table.values(name)
        for name in ("rank", "doubt", "dur_ns", "fraction_of_recorded_time", "count", "evidence")
    }
    for rank, *values in zip(*columns.values(), strict=True):
        doubts.setdefault(str(rank), []).append(dict(zip(list(columns)[1:], values, strict=True)))
    return {"complete": not doubts, "doubts": doubts}


def affected(doubt: str, metric: str) -> bool:
    """Whether a doubt makes a metric of the steps unreliable."""
    kind = DOUBTS.get(doubt)
    return kind is None or metric.startswith(kind.metrics)

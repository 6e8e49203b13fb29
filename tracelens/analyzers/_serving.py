"""The labelled steps of one serving rank: the part that travels to where ranks are compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tracelens.analyzers._comms import RankComms, comms
from tracelens.analyzers._labels import Half, Label, grammar
from tracelens.trace.intervals import union
from tracelens.trace.trace import Events, Trace
from tracelens.trace.work import Scope, Work, gpu_work

Int = NDArray[np.int64]
Mask = NDArray[np.bool_]

_HOST_KINDS = ("annotation", "slice", "op")
_GRAPH_LAUNCH = "GraphLaunch"


class Step(NamedTuple):
    """One forward pass of a rank.

    Attributes:
        label: what the program says of it.
        eager: it launched its kernels one by one, by its label or else by its launch calls.
        graph: it replayed a graph; neither where nothing tells.
        start, end: ns, from the first to the last of its kernels; of its mark where none is linked to it.
        halves: tokens of the halves under two-batch overlap, as far as they are labelled.
        comm_ns: communication between start and end; -1 but for two-batch overlap.
        hidden_ns: of that, beside computation.
    """

    label: Label
    eager: bool
    graph: bool
    start: int
    end: int
    halves: tuple[int, ...]
    comm_ns: int
    hidden_ns: int

    @property
    def dur_ns(self) -> int:
        """Its duration."""
        return self.end - self.start

    @property
    def two_batches(self) -> bool:
        """Whether it ran as two overlapped batches."""
        return self.label.tbo or len(self.halves) > 1


class RankSteps(NamedTuple):
    """The steps of one rank in order, and its communication where it has steps: that aligns the clocks."""

    rank: int
    comms: RankComms | None
    steps: list[Step]


class _Marks(NamedTuple):
    """Labelled ranges in order of start: code of their names, ns."""

    name: Int
    start: Int
    end: Int


def rank_steps(trace: Trace, *, scope: Scope = "all") -> RankSteps:
    """The labelled steps of one rank.

    Args:
        trace: of the rank.
        scope: which GPU work counts, see work.Scope.
    """
    events = trace.arrays
    on_host = events.where(*_HOST_KINDS)
    labels = _read(events, on_host, grammar().step)
    chosen = on_host & _named(events, labels)
    if not labels:  # recorded without the CPU: the marks that the profiler drew on the GPU
        on_host = events.where("gpu_annotation")
        labels = _read(events, on_host, grammar().step)
        chosen = _one_lane(events, on_host & _named(events, labels))
    if not labels:
        return RankSteps(trace.meta.rank, None, [])
    marks = _outermost(events, chosen)
    halves = _read(events, on_host, grammar().half)
    found = _steps(trace, gpu_work(trace, scope), marks, labels)
    tokens = _half_tokens(events, on_host & _named(events, halves), halves, marks)
    found = [step._replace(halves=some) for step, some in zip(found, tokens, strict=True)]
    found = _overlap(gpu_work(trace, scope), found)
    return RankSteps(trace.meta.rank, comms(trace, scope=scope), _in_window(trace, found))


def _read[T](events: Events, where: Mask, reader: Callable[[str], T | None]) -> dict[int, T]:
    """What the reader makes of the names of these events, by code; without the names it cannot read."""
    used = np.flatnonzero(np.bincount(events.name[where], minlength=1))
    found = ((code, reader(events.names[code])) for code in used.tolist())
    return {code: what for code, what in found if what is not None}

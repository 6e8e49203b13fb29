"""Which calls of a trace to replay."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tracelens.analysis import ANALYZERS
from tracelens.analysis.common import own_device
from tracelens.arrays import Bool, lookup
from tracelens.devices import Device
from tracelens.errors import TracelensError
from tracelens.findings import RankContext
from tracelens.findings.detectors import DETECTORS, JOB, Detection
from tracelens.reproducers.inputs import Unreplayable, read, tensors
from tracelens.reproducers.select.cases import Call, Case
from tracelens.table import nearest
from tracelens.trace import Run, Trace, Union, Work, matching, wildcards


@dataclass(frozen=True)
class Selection:
    """Which calls to replay; all conditions must hold.

    Attributes:
        op: pattern of op names (aten::*mm*), "" for all.
        ops: names of ops, empty for all.
        shapes: sizes of which each has to be that of a tensor among the arguments.
        module: pattern of a name around the call, or around the forward call whose gradient it computes: a
            record_function scope or a Python frame.
        rank: -1 for all.
        at_ns: of one event, since the first of its trace: what starts or runs there, with all that it calls.
        during: by rank, when the GPU work has to run.
    """

    op: str = ""
    ops: Sequence[str] = ()
    shapes: Sequence[tuple[int, ...]] = ()
    module: str = ""
    rank: int = -1
    at_ns: int | None = None
    during: Mapping[int, Union] | None = field(default=None, hash=False)

    @property
    def selects_all(self) -> bool:
        return not (self.op or self.ops_only or self.during is not None)

    @property
    def ops_only(self) -> bool:
        """Whether a condition applies to calls of ops only, not to collectives."""
        has_rank = self.rank >= 0 or self.at_ns is not None
        return bool(has_rank or self.ops or self.shapes or self.module)


def sizes(text: str) -> tuple[int, ...]:
    """The sizes that a user writes as 4096,2048 or 4096x2048; raises TracelensError for anything else."""
    words = re.split(r"[,x]", text.strip("[]() "))
    if not all(word.strip().isdecimal() for word in words):
        raise TracelensError(f"{text!r} is not a shape; write sizes such as 4096,2048")
    return tuple(int(word) for word in words)


def selected_work(trace: Trace, selection: Selection) -> Work:
    """The GPU work of the selected calls; `fits` checks the shapes."""
    work = trace.work
    if selection.rank >= 0 and trace.meta.rank != selection.rank:
        return work.take(np.zeros(len(work.event), dtype=bool))
    keep = work.op >= 0
    op = np.maximum(work.op, 0)
    if selection.op:
        keep &= matching(trace.arrays.names, wildcards(selection.op))[trace.arrays.name[op]]
    if selection.ops:
        named = np.array([name in selection.ops for name in trace.arrays.names], dtype=bool)
        keep &= named[trace.arrays.name[op]]
    if selection.module:
        keep &= _inside(trace, work, _named(trace, selection.module))
    if selection.at_ns is not None:
        keep &= _at_time(trace, work, int(trace.arrays.start.min()) + selection.at_ns)
    if selection.during is not None:
        keep &= _during(work, selection.during.get(trace.meta.rank))
    return work.take(keep)


def fits(case: Case, selection: Selection) -> bool:
    """Whether the arguments of a case have the selected shapes."""
    return not selection.shapes or set(selection.shapes) <= _shapes(case.call)


def _shapes(call: Call) -> set[tuple[int, ...]]:
    try:
        return {tensor.shape for tensor in tensors(read(*call.recorded, of_lists="float32"))}
    except Unreplayable:
        return set()


def _named(trace: Trace, pattern: str) -> Bool:
    """Events around calls that are named so."""
    events = trace.arrays
    around = events.where("annotation", "python", "slice")
    return around & matching(events.names, wildcards(pattern))[events.name]


def _inside(trace: Trace, work: Work, around: Bool) -> Bool:
    """Work whose op, or the forward op that it belongs to, is inside one of these events."""
    inside = nearest(trace.arrays.parent, trace.arrays.depth, around) >= 0
    of_op = lookup(inside, work.op, False)
    of_forward = lookup(inside, work.forward, False)
    return of_op | of_forward


def _at_time(trace: Trace, work: Work, time: int) -> Bool:
    """Work of the calls that start at a time, and that runs on the GPU then."""
    events = trace.arrays
    starts = (events.start == time) & events.where("op", "annotation", "python", "launch", "slice")
    return _inside(trace, work, starts) | ((work.start <= time) & (time < work.end))


def _during(work: Work, when: Union | None) -> Bool:
    if when is None or not len(when.start):
        return np.zeros(len(work.event), dtype=bool)
    return np.asarray(when.covered(work.start, work.end) > 0)


def time_of(run: Run, name: str, device: Device | None = None) -> dict[int, Union]:
    """When time is lost to what a detector finds, by rank.

    Raises:
        TracelensError: no such detector, or it finds nothing; the message says why.
    """
    detector = DETECTORS.get(name)
    outcome: Mapping[int, Detection] | str
    if detector.needs:
        outcome = detector.of_run({need: ANALYZERS.get(need)(run) for need in detector.needs})
    else:
        per_rank = {
            trace.meta.rank: detector.of_rank(RankContext(trace, device or own_device(trace)))
            for trace in run.traces
        }
        detections = {
            rank: detection for rank, detection in per_rank.items() if isinstance(detection, Detection)
        }
        outcome = detections or "; ".join(dict.fromkeys(str(reason) for reason in per_rank.values()))
    if isinstance(outcome, str):
        raise TracelensError(f"no finding {name!r} in this trace: {outcome}")
    if JOB in outcome:
        return dict.fromkeys(run.ranks, outcome[JOB].where)
    return {rank: detection.where for rank, detection in outcome.items()}

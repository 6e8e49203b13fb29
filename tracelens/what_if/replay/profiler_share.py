"""What the profiler adds to the host's time, and the step without it.

The profiler slows the host down, by a little in each op and call, and leaves kernels nearly as they are. So
a recorded step is more launch-bound than the same step is without it, and savings of host time look too
large. Where the step's time without the profiler is known, one factor on all host time, of those between
`LEAST` and 1, makes the replay take that long; scenarios start from there.

Measured on 29 recordings on H200s (torch 2.11; the bundled workload, and three Hugging Face models with
experts in a loop and grouped; one and two GPUs), with 14 or 16 steps timed without the profiler just before:
in the 16 whose recorded step is at least 10% longer than those, the factor is 0.34 to 0.82, 0.66 in the
median and in 12 of them above `UNKNOWN`. One factor is an average over calls, and another program makes
others: from before a change to after it, it became 0.66 to 1.23 of itself (six pairs). So intervals of what
changes the host reach from `LOWER` to `UPPER` of the host time that is left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tracelens.arrays import Bool
from tracelens.units import duration
from tracelens.what_if.graph import Edge, Edit, Graph, times

LEAST = 1 / 3
"""Least share of the recorded host time that is the program's own; no recording had less."""

UNKNOWN = 0.5
"""Least host time in intervals where the recording does not tell the factor, as a share of the recorded."""

LOWER, UPPER = 0.65, 1.25
"""Host time in intervals where it does and the scenario changes it, as a share of the projected; never more
than recorded."""

_CLOSE = 1e-4
"""Relative distance at which a replayed step counts as the one looked for."""

_FLAT = 0.005
"""Where host time does not decide the step, it is scaled no further than to this distance of the nearest."""

_TOLD = 0.02
"""Relative distance of base and known step below which nobody needs to hear of it."""


def known_step_ns(given_ms: float | None, timed_ns: Sequence[float]) -> float | None:
    """The step without the profiler: as the user gives it, else the mean of the ranks that timed theirs."""
    if given_ms is not None:
        return given_ms * 1e6
    known = [ns for ns in timed_ns if ns > 0]
    return float(np.mean(known)) if known else None


@dataclass(frozen=True)
class ProfilerShare:
    """How a recorded step becomes the step without the profiler.

    Attributes:
        factor: of all host time; 1 keeps it as recorded.
        known_ns: the step without the profiler, None if unknown.
        lower: share of the projected step's host time to which intervals reach down; 1 where they need not.
        limit: why the replay does not take `known_ns`, or what is not known; "" if there is nothing to tell.
    """

    factor: float = 1.0
    known_ns: float | None = None
    lower: float = 1.0
    limit: str = ""

    def base(self, graph: Graph) -> Edit:
        """The edit with which scenarios begin."""
        return scaled(graph, Edit.of(graph), self.factor)

    @property
    def upper(self) -> float:
        """Share of the projected step's host time to which intervals reach up: to the recorded at most."""
        return min(UPPER, 1 / self.factor)

    def extremes(self, graph: Graph, edit: Edit) -> list[Edit]:
        """An edit with as little, and with as much host time as it may have without the profiler.

        None where the recording tells the factor, and the edit leaves the host as it is.
        """
        host_time = _host_time(graph)
        base = self.base(graph)
        same_lag = np.array_equal(edit.lag[host_time], base.lag[host_time])
        if self.factor != 1 and same_lag and edit.kept[host_time].all():
            return []
        return [scaled(graph, edit, share) for share in (self.lower, self.upper) if share != 1]


def scaled(graph: Graph, edit: Edit, factor: float) -> Edit:
    """An edit with the host's time, between its calls and from thread to thread, times a factor."""
    if factor == 1:
        return edit
    host_time = _host_time(graph)
    result = replace(edit, lag=edit.lag.copy())
    result.lag[host_time] = times(edit.lag[host_time], factor)
    return result


def _host_time(graph: Graph) -> Bool:
    """Which edges are time of the host."""
    return np.isin(graph.edge, (Edge.HOST, Edge.HANDOVER))


def profiler_share(known_ns: float | None, replayed_ns: Callable[[float], int]) -> ProfilerShare:
    """The share with which a replayed step takes as long as it does without the profiler.

    Args:
        known_ns: the step without the profiler, None if unknown.
        replayed_ns: the step with host time times a factor; it does not fall with the factor.
    """
    if known_ns is None:
        text = (
            f"unknown: host time stays as recorded, and low assumes down to {UNKNOWN:g} of it (measured "
            "without the profiler: 0.34 to 0.82); record with tracelens.record(..., pace_steps=20) or "
            "pass --unprofiled-step-ms (unprofiled_step_ms=)"
        )
        return ProfilerShare(lower=UNKNOWN, limit=text)
    recorded_ns, least_ns = replayed_ns(1.0), replayed_ns(LEAST)
    if known_ns >= recorded_ns:
        why = "host time stays as recorded"
        # So the host does not decide the step, and nothing tells how much of its time is the profiler's.
        return ProfilerShare(1.0, known_ns, UNKNOWN, _unreached(known_ns, recorded_ns, why))
    if known_ns > least_ns:
        return ProfilerShare(_fitted(known_ns, recorded_ns, least_ns, replayed_ns), known_ns, LOWER)
    nearest_ns = least_ns * (1 + _FLAT)
    factor = _fitted(nearest_ns, recorded_ns, least_ns, replayed_ns) if nearest_ns < recorded_ns else 1.0
    why = f"host time is {factor:.2f} of the recorded; less would not shorten the step, which is GPU-bound"
    return ProfilerShare(factor, known_ns, LOWER, _unreached(known_ns, replayed_ns(factor), why))


def _unreached(known_ns: float, base_ns: float, why: str) -> str:
    """A limit, "" where the base is as good as the known step."""
    if abs(known_ns / base_ns - 1) <= _TOLD:
        return ""
    return (
        f"the step takes {duration(known_ns)} without the profiler and {duration(base_ns)} in the replay, "
        f"the baseline of projections: {why}"
    )


def _fitted(
    target_ns: float, recorded_ns: float, least_ns: float, replayed_ns: Callable[[float], int]
) -> float:
    """The factor for which a step takes so long, by regula falsi (Illinois), which needs few replays."""
    low, high, low_ns, high_ns = LEAST, 1.0, least_ns - target_ns, recorded_ns - target_ns
    factor, side = high, 0
    for _ in range(40):
        if high - low < _CLOSE / 10:
            break
        factor = (low * high_ns - high * low_ns) / (high_ns - low_ns)
        off_ns = replayed_ns(factor) - target_ns
        if abs(off_ns) <= _CLOSE * target_ns:
            break
        if off_ns > 0:
            high, high_ns = factor, off_ns
            low_ns = low_ns / 2 if side == 1 else low_ns
            side = 1
        else:
            low, low_ns = factor, off_ns
            high_ns = high_ns / 2 if side == -1 else high_ns
            side = -1
    return factor

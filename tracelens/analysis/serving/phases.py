"""A run narrowed to one phase of serving: all its decode steps, or all its prefills, one behind the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tracelens.analysis.comm import align_run
from tracelens.analysis.common import KINDS, grammar
from tracelens.analysis.serving.global_steps import GlobalStep, RankStep, by_one_clock, global_steps
from tracelens.analysis.serving.steps import rank_steps
from tracelens.arrays import lookup
from tracelens.errors import TracelensError
from tracelens.table import shortened
from tracelens.trace import Run, Stretch, Trace, excerpt, interval_of

PHASES = KINDS
"""Phases by which a run can be narrowed: the kinds of step."""


def select_phase(run: Run, phase: str) -> Run:
    """The steps of one phase, as if only they were recorded; what lies between the steps is left out.

    Ranks that serve together are cut at the same times: a step is of a phase if all ranks with requests are
    in it, "mixed" if they are in different ones, and "idle" if none has a request.

    Args:
        run: all of it.
        phase: one of PHASES.

    Raises:
        TracelensError: a rank has no such step; the message says which ones there are.
    """
    ranks = [trace.once(rank_steps) for trace in run.traces]
    if not all(rank.steps for rank in ranks):
        bare = next(trace for trace, rank in zip(run.traces, ranks, strict=True) if not rank.steps)
        engines = shortened([engine.name for engine in grammar().engines])
        raise TracelensError(f"{bare.meta.path}: no step {phase!r}: no step label of {engines} in the trace")
    shift = align_run(run).shift if len(ranks) > 1 else {ranks[0].rank: 0}
    aligned = by_one_clock(ranks, shift)
    together = global_steps(aligned)
    matched = {(rank, step.host_start) for steps in together for rank, step in steps.rank_steps}
    alone = [
        GlobalStep((RankStep(rank.rank, step),))
        for rank in aligned
        for step in rank.steps
        if (rank.rank, step.host_start) not in matched
    ]
    steps = sorted([*together, *alone], key=lambda step: step.start)
    extents = {trace.meta.rank: _extents(trace, shift[trace.meta.rank]) for trace in run.traces}
    windows = _windows([step for step in steps if phase_of(step) == phase], extents)
    return Run(tuple(_excerpt(trace, phase, steps, windows, shift[trace.meta.rank]) for trace in run.traces))


def phase_of(step: GlobalStep) -> str:
    """The phase that all ranks with requests are in: "mixed" for several, "idle" without requests."""
    phases = step.phases
    return next(iter(phases)) if len(phases) == 1 else "mixed" if phases else "idle"


class _Window(NamedTuple):
    """A step and when it runs by the common clock; how much of what comes before it is left out."""

    step: GlobalStep
    start: int
    end: int
    earlier_ns: int


def _extents(trace: Trace, shift: int) -> dict[int, tuple[int, int]]:
    """(begin, end) of each step of a rank on its GPU, copies included, by the begin of its mark on the host.

    By the rule of trace.steps_of it begins when the GPU has finished what comes before or, where it was idle
    then, when the host began it. Where nothing comes before, that is not recorded: with its first work.
    """
    work, steps = trace.work, trace.once(rank_steps).steps
    marks = np.array([(step.host_start, step.host_end) for step in steps], dtype=np.int64).reshape(-1, 2)
    low, high = (
        np.array([getattr(step, name) for step in steps], dtype=np.int64) for name in ("start", "end")
    )
    launched = work.launch >= 0
    until = np.maximum(marks[:, 1], marks[:, 0] + 1)
    of_step = interval_of(marks[:, 0], until, trace.arrays.start[work.launch[launched]])
    inside = of_step >= 0
    np.minimum.at(low, of_step[inside], work.start[launched][inside])
    np.maximum.at(high, of_step[inside], work.end[launched][inside])
    earlier = np.searchsorted(work.start, low)
    finished = lookup(np.maximum.accumulate(work.end), earlier - 1, low)
    begin = np.where(earlier > 0, np.minimum(np.maximum(marks[:, 0], finished), low), low)
    extents = zip((begin + shift).tolist(), (high + shift).tolist(), strict=True)
    return dict(zip(marks[:, 0].tolist(), extents, strict=True))


def _windows(
    steps: Sequence[GlobalStep], extents: Mapping[int, Mapping[int, tuple[int, int]]]
) -> list[_Window]:
    windows: list[_Window] = []
    earlier_ns, until = 0, None
    for step in steps:
        begins, ends = zip(*(extents[rank][own.host_start] for rank, own in step.rank_steps), strict=True)
        start, end = min(begins), max(ends)
        if until is not None:
            earlier_ns += max(start - until, 0)
        until = end if until is None else max(until, end)
        windows.append(_Window(step, start, end, earlier_ns))
    return windows


def _excerpt(
    trace: Trace, phase: str, steps: Sequence[GlobalStep], windows: Sequence[_Window], shift: int
) -> Trace:
    """One rank's part of these windows."""
    stretches: list[Stretch] = []
    for window in windows:
        for rank, own in window.step.rank_steps:
            if rank != trace.meta.rank:
                continue
            host_earlier_ns = window.earlier_ns
            if stretches:
                before = stretches[-1]
                host_earlier_ns = min(
                    host_earlier_ns, own.host_start - before.host_end + before.host_earlier_ns
                )
            start, end = window.start - shift, window.end - shift
            stretches.append(
                Stretch(start, end, own.host_start, own.host_end, window.earlier_ns, host_earlier_ns)
            )
    if not stretches:
        counts = Counter(
            phase_of(step) for step in steps for rank, _ in step.rank_steps if rank == trace.meta.rank
        )
        known = shortened([f"{count} {name}" for name, count in counts.most_common()])
        raise TracelensError(f"{trace.meta.path}: no step {phase!r} (has: {known})")
    return excerpt(trace, phase, stretches)

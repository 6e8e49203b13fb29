"""The steps of a run, and which of them a picture can show down to their kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median_low
from typing import Any, NamedTuple

import numpy as np

from tracelens.analysis.step_timeline.rank import RankTimeline
from tracelens.analysis.step_timeline.schemas import KERNELS, STEPS
from tracelens.arrays import Int
from tracelens.table import Skip, Table, shortened
from tracelens.trace import is_step


class Selection(NamedTuple):
    """The steps of a run in order of time, and those whose kernels are shown.

    Attributes:
        begin: first begin on any rank, ns by the common clock.
        end: last end.
        kernels: number of kernels, copies and memsets on all ranks.
        typical: the step that stands for the run.
        shown: steps whose kernels are shown.
        budget: kernels shown at most.
    """

    begin: Mapping[str, int]
    end: Mapping[str, int]
    kernels: Mapping[str, int]
    typical: str
    shown: Sequence[str]
    budget: int

    def table(self, origin: int) -> Table:
        """Rows of STEPS, times since `origin`."""
        return STEPS.from_rows(
            (step, begin - origin, self.end[step] - begin, self.kernels[step], step in self.shown)
            for step, begin in self.begin.items()
        )

    def skips(self) -> list[Skip]:
        """What is not shown."""
        why = f"the picture holds {self.budget:,} kernels"
        hidden = [step for step in self.begin if step not in self.shown]
        skips = [Skip(f"kernels of {len(hidden)} step(s): {shortened(hidden)}", why)] if hidden else []
        if (count := self.kernels[self.typical]) > self.budget:
            subject = f"all but the longest of {count:,} kernels of {self.typical or 'the run'}"
            skips.append(Skip(subject, why))
        return skips


def select_steps(parts: Sequence[RankTimeline], shift: Mapping[int, int], budget: int) -> Selection:
    """The steps of a run.

    Args:
        parts: of its ranks, at least one.
        shift: rank to the ns that are added to its times to get them by the common clock.
        budget: kernels that can be shown; the typical step is always among those that are.
    """
    begins: dict[str, list[int]] = {}
    ends: dict[str, list[int]] = {}
    kernels: dict[str, int] = {}
    for part in parts:
        counts = np.bincount(part.step, minlength=len(part.labels)).tolist()
        edges = (part.edges + shift[part.rank]).tolist()
        for position, step in enumerate(part.labels):
            begins.setdefault(step, []).append(edges[position])
            ends.setdefault(step, []).append(edges[position + 1])
            kernels[step] = kernels.get(step, 0) + counts[position]
    order = sorted(begins, key=lambda step: min(begins[step]))
    durations = {step: sum(ends[step]) - sum(begins[step]) for step in order}
    whole = [step for step in order if is_step(step)] or order
    everywhere = [step for step in whole if len(begins[step]) == len(parts)] or whole
    mean_ns = [durations[step] // len(begins[step]) for step in everywhere]
    # As the scenarios choose theirs, so that the picture and the findings are about one step.
    typical = everywhere[mean_ns.index(median_low(mean_ns))]
    return Selection(
        {step: min(begins[step]) for step in order},
        {step: max(ends[step]) for step in order},
        kernels,
        typical,
        _shown([typical, *(step for step in order if step != typical)], kernels, budget),
        budget,
    )


def _shown(steps: Sequence[str], kernels: Mapping[str, int], budget: int) -> list[str]:
    """The first of these steps, and of the others, whole ones first, as many as there is room for."""
    first, *others = steps
    others.sort(key=lambda step: not is_step(step))
    total = np.cumsum([kernels[step] for step in (first, *others)]).tolist()
    return [first, *(step for step, so_far in zip(others, total[1:], strict=True) if so_far <= budget)]


def kernel_rows(part: RankTimeline, selection: Selection, start: int) -> dict[str, Any]:
    """Rows of KERNELS of one rank.

    Args:
        part: of the rank.
        selection: of the run.
        start: what is added to times to get them since the first instant shown.
    """
    number_shown = [number for number, step in enumerate(part.labels) if step in selection.shown]
    rows = np.flatnonzero(np.isin(part.step, number_shown))
    count = selection.kernels[selection.typical]
    if count > selection.budget:  # that step is alone; each rank has its share
        rows = rows[longest(part.kernels["dur_ns"][rows], len(rows) * selection.budget // count)]
    columns = {name: values.take(rows) for name, values in part.kernels.items()}
    return columns | {"rank": np.full(len(rows), part.rank), "ts_ns": columns["ts_ns"] + start}


def longest(dur: Int, count: int) -> Int:
    """Positions of the longest of several durations, in order."""
    return np.sort(np.argsort(-dur, kind="stable")[:count])


def kernel_table(parts: Sequence[RankTimeline], selection: Selection, start: Mapping[int, int]) -> Table:
    """KERNELS of all ranks, one below the other; `start` as for `kernel_rows`, by rank."""
    return KERNELS.concat([kernel_rows(part, selection, start[part.rank]) for part in parts])

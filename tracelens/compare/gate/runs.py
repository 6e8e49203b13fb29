"""One side of a gate: recordings of one program, and what older ones tell of its noise."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tracelens.arrays import Float
from tracelens.compare.gate.noise import Spread
from tracelens.compare.gate.samples import Doubt, Samples, is_named


@dataclass(frozen=True)
class Side:
    """Recordings that are compared as one."""

    runs: tuple[Samples, ...]
    # Runs of older versions of the program, oldest first, each group of one version; only their noise counts.
    history: tuple[tuple[Samples, ...], ...] = ()
    name: str = ""  # of all of it, by default of its first run

    @staticmethod
    def of(side: Side | Samples | Sequence[Samples]) -> Side:
        """A side from one run or several."""
        if isinstance(side, Side):
            return side
        return Side((side,) if isinstance(side, Samples) else tuple(side))

    @property
    def label(self) -> str:
        """Its name for people."""
        more = len(self.runs) - 1
        return self.name or self.runs[0].name + (f" and {more} more" if more else "")

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that all runs have."""
        common = set.intersection(*(set(run.ranks) for run in self.runs))
        return tuple(rank for rank in self.runs[0].ranks if rank in common)

    @property
    def doubts(self) -> tuple[tuple[Samples, Doubt], ...]:
        """The doubts about its recordings."""
        return tuple((run, doubt) for run in self.runs for doubt in run.doubts)

    def only(self, ranks: Sequence[int]) -> Side:
        """The side with these ranks; runs of the history that lack one of them are left out."""
        history = [
            tuple(run.only(ranks) for run in group if set(ranks) <= set(run.ranks)) for group in self.history
        ]
        return replace(
            self, runs=tuple(run.only(ranks) for run in self.runs), history=tuple(filter(None, history))
        )

    @property
    def parts(self) -> set[str]:
        """The parts of the loop that all runs with a pace have timed."""
        timed = [set(run.parts) for run in self.runs if run.parts]
        return set.intersection(*timed) if timed else set()

    def with_parts(self, parts: Collection[str]) -> Side:
        """The side with these parts only: steps after the recording are slower if the profiler left hooks."""
        return replace(
            self,
            runs=tuple(run.with_parts(parts) for run in self.runs),
            history=tuple(tuple(run.with_parts(parts) for run in group) for group in self.history),
        )

    def find(self, metric: str) -> str | None:
        """The full name of a metric if the side has it: all runs, or of an op or kernel one of them."""
        names = [run.find(metric) for run in self.runs]
        known = next((name for name in names if name is not None), None)
        return known if known is not None and (all(names) or is_named(known)) else None

    def each_step(self, metric: str) -> list[Float]:
        """One value per step of each run; runs without one are left out."""
        return [steps for run in self.runs if len(steps := run.each_step(metric))]

    def why_not(self, metric: str) -> str:
        """Why a metric could not be computed, "" if unknown."""
        return next(filter(None, (run.why_not(metric) for run in self.runs)), "")

    def noise_of_history(self, metric: str, relative: bool) -> Spread:
        """Spread of the means of runs in the history, each divided by its group's mean if relative.

        Within a version runs differ by noise alone. From version to version the program may change, too:
        of those differences the median counts, which a few changes do not move (0.6745 σ of a normal
        distribution, whose estimate from n differences is worth about 0.37 n degrees of freedom).
        """
        groups = [
            [run.each_step(metric).mean() for run in group if run.find(metric)] for group in self.history
        ]
        means = [np.array(group) for group in groups if group]
        if relative:
            means = [group / group.mean() if group.mean() else group for group in means]
        spread = Spread.of(means)
        levels = np.array([np.mean(group) for group in groups if group])
        if len(levels) < 3 or spread.freedom >= 2:
            return spread
        steps = np.diff(np.log(levels)) if relative and (levels > 0).all() else np.diff(levels)
        sigma = float(np.median(np.abs(steps))) / 0.6745 / np.sqrt(2)
        return spread.pooled(Spread(sigma**2, 0.37 * len(steps)))

"""Breakdowns of step time, each of which adds up exactly to the difference of two runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tracelens.arrays import Float, Int
from tracelens.compare.diff.noise import Spread
from tracelens.table import codes


class LedgerRows(NamedTuple):
    """The nonzero rows of a level, largest difference first; pairs are of the base and of the candidate."""

    names: list[str]
    by_step: list[Spread]  # ns over the steps, mean over ranks
    ns: list[Int]  # mean over steps, rounded so that all rows of a level add up to the step
    counts: list[Float]  # GPU activities per step
    cause: Int  # code of the cause of most of the difference


class Part(NamedTuple):
    """Pieces of the step time of one rank."""

    row: Int  # row of the level
    step: Int
    cause: Int
    ns: Int
    starts: Int  # 1 if the activity begins in the step
    steps: int  # number of steps of the rank


class Level:
    """One breakdown of the step time of both runs.

    Args:
        name: of the level.
        causes: number of causes.
        ranks: number of ranks of the base and of the candidate.
    """

    def __init__(self, name: str, causes: int, ranks: tuple[int, int]) -> None:
        self.name = name
        self._causes, self._ranks = causes, ranks
        self._row_of_text: dict[str, int] = {}
        self._parts: tuple[list[Part], list[Part]] = ([], [])

    def add(self, side: int, texts: Sequence[str], part: Part) -> None:
        """Add a rank of the base (0) or the candidate (1), whose rows are indices into `texts`."""
        rows = [self._row_of_text.setdefault(text, len(self._row_of_text)) for text in texts]
        if rows:
            part = part._replace(row=np.array(rows, dtype=np.int64)[part.row])
        self._parts[side].append(part)

    def rows(self, step_ns: tuple[int, int]) -> LedgerRows:
        """All rows; they add up to `step_ns`, the step time of the base and of the candidate."""
        names = list(self._row_of_text)
        by_step, by_cause, starts = zip(*(self._sums(side, len(names)) for side in (0, 1)), strict=True)
        ns = [apportion(spread.mean, total) for spread, total in zip(by_step, step_ns, strict=True)]
        order = np.argsort(-np.abs(ns[1] - ns[0]), kind="stable")
        order = order[(ns[0][order] > 0) | (ns[1][order] > 0)]
        return LedgerRows(
            [names[row] for row in order.tolist()],
            [spread.take(order) for spread in by_step],
            [side[order] for side in ns],
            [side[order] for side in starts],
            np.abs(by_cause[1] - by_cause[0]).argmax(axis=1)[order],
        )

    def _sums(self, side: int, count: int) -> tuple[Spread, Float, Float]:
        """(ns by row over steps, mean over ranks; ns per step by row and cause; pieces per step by row)."""
        parts = self._parts[side]
        steps = min((part.steps for part in parts), default=0)
        by_cause, starts = np.zeros((count, self._causes)), np.zeros(count)
        for part in parts:
            np.add.at(by_cause, (part.row, part.cause), part.ns / part.steps)
            np.add.at(starts, part.row, part.starts / part.steps)
        # Ranks of one job have the same steps; extra steps of some ranks join the last common step.
        ranks = self._ranks[side]
        by_step = spread(
            np.concatenate([_EMPTY, *(part.row for part in parts)]),
            np.concatenate([_EMPTY, *(np.minimum(part.step, steps - 1) for part in parts)]),
            np.concatenate([_EMPTY, *(part.ns * (steps / part.steps) for part in parts)]),
            count,
            steps,
            ranks,
        )
        return by_step, by_cause / ranks, starts / ranks


_EMPTY = np.empty(0, dtype=np.int64)


def apportion(values: Float, total: int | None = None) -> Int:
    """Integers near `values` whose sum is `total`; the largest remainders are rounded up.

    Args:
        values: sum up to about `total`. Floats beyond 2**53 are off by more than a remainder; then the
            largest value takes the rest.
        total: the wanted sum, by default that of the values. Values further from it than float rounding are
            not its parts and keep their own sum.
    """
    low = np.floor(values).astype(np.int64)
    if total is None or abs(float(values.sum()) - total) > max(1.0, 1e-9 * total):
        total = round(float(values.sum()))
    missing = total - int(low.sum())
    if 0 <= missing <= len(low):
        low[np.argsort(-(values - low), kind="stable")[:missing]] += 1
    elif len(low):
        low[values.argmax()] += missing
    return low


def spread(row: Int, step: Int, ns: Float, rows: int, steps: int, ranks: int) -> Spread:
    """Mean and variance over steps of the time of each of `rows` rows, from the row, step and ns of pieces.

    Steps without a piece count as 0; the sum of a step is averaged over `ranks`.
    """
    cell, (cell_row, _) = codes(row, step)
    values = np.zeros(len(cell_row))
    np.add.at(values, cell, ns)
    return Spread.of(cell_row, values / ranks, rows, steps)

"""Breakdowns of step time, each of which adds up exactly to the difference of two runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tracelens.arrays import Float, Int
from tracelens.compare.diff.noise import Spread
from tracelens.table import codes


class LedgerRows(NamedTuple):
    """The rows of a level, largest difference first.

    Attributes:
        names: one per row.
        base: ns over the base's steps, mean over ranks.
        cand: the same of the candidate.
        base_ns: mean over steps, rounded so that all rows of a level add up to the step.
        cand_ns: the same of the candidate.
        base_count: GPU activities per step.
        cand_count: the same of the candidate.
        cause: code of the cause of most of the difference.
    """

    names: list[str]
    base: Spread
    cand: Spread
    base_ns: Int
    cand_ns: Int
    base_count: Float
    cand_count: Float
    cause: Int


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
        self._parts: tuple[list[_Part], list[_Part]] = ([], [])

    def add(
        self,
        side: int,
        texts: Sequence[str],
        code: Int,
        step: Int,
        cause: Int,
        ns: Int,
        starts: Int,
        steps: int,
    ) -> None:
        """Add pieces of one rank.

        Args:
            side: 0 for the base, 1 for the candidate.
            texts: names.
            code: of each piece, index into `texts`.
            step: of each piece.
            cause: of each piece.
            ns: of each piece.
            starts: of each piece, 1 if its activity begins in the step.
            steps: number of steps of the rank.
        """
        row_of_name = np.array(
            [self._row_of_text.setdefault(text, len(self._row_of_text)) for text in texts], dtype=np.int64
        )
        rows = row_of_name[code] if len(row_of_name) else code
        self._parts[side].append(_Part(rows, step, cause, ns, starts, steps))

    def rows(self, step_ns: tuple[int, int]) -> LedgerRows:
        """All rows.

        Args:
            step_ns: step time of the base and of the candidate, which the rows add up to.
        """
        count = len(self._row_of_text)
        by_step, by_cause, starts = zip(*(self._sums(side, count) for side in (0, 1)), strict=True)
        base_ns, cand_ns = (
            apportion(spread.mean, total_ns) for spread, total_ns in zip(by_step, step_ns, strict=True)
        )
        order = np.argsort(-np.abs(cand_ns - base_ns), kind="stable")
        names = list(self._row_of_text)
        return LedgerRows(
            [names[row] for row in order.tolist()],
            by_step[0].take(order),
            by_step[1].take(order),
            base_ns[order],
            cand_ns[order],
            starts[0][order],
            starts[1][order],
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


class _Part(NamedTuple):
    """Pieces of one rank, see Level.add."""

    row: Int
    step: Int
    cause: Int
    ns: Int
    starts: Int
    steps: int


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
    """Mean and variance over steps of the time of each row.

    Args:
        row: of each piece.
        step: of each piece.
        ns: of each piece.
        rows: number of rows.
        steps: number of steps; those without a piece count as 0.
        ranks: over which the sum of a step is averaged.
    """
    cell, (cell_row, _) = codes(row, step)
    values = np.zeros(len(cell_row))
    np.add.at(values, cell, ns)
    return Spread.of(cell_row, values / ranks, rows, steps)

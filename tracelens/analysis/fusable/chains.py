"""Chains of kernels, and the one fused kernel that does what each of them does."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracelens.analysis.fusable.step_work import StepWork
from tracelens.arrays import Float, Int


class Chains(NamedTuple):
    """Kernels launched one after the other, each chain of which one kernel could replace.

    Attributes:
        rows: positions in the trace's work, in order of launch.
        chain: number of the chain of each.
        fused_ns: time of the kernel that replaces each chain.
    """

    rows: Int
    chain: Int
    fused_ns: Float

    @staticmethod
    def none() -> Chains:
        """No chain."""
        empty = np.empty(0, dtype=np.int64)
        return Chains(empty, empty, np.empty(0))


def chains(step: StepWork, rows: Int, cell: Int, least_ns: Float | None) -> Chains:
    """Cut kernels into chains: nothing else is launched in between, and the cell stays the same.

    A fused kernel takes its least time, but no less than the shortest kernel of its chain. Where no least
    time is known it takes as long as the longest kernel. It never takes longer than the chain.

    Args:
        step: the work of a rank.
        rows: kernels, positions in its work.
        cell: of each, such as its layer.
        least_ns: of all of a cell's work, by cell, shared out by the kernels' times; None if unknown.
    """
    if not len(rows):
        return Chains.none()
    work = step.work
    counted = np.unique(np.concatenate((rows, np.flatnonzero(work.is_kernel))))
    counted = counted[np.lexsort((work.start[counted], step.called[counted]))]
    cell_of = np.full(len(work.event), -1, dtype=np.int64)
    cell_of[rows] = cell
    ordered = cell_of[counted]
    turn = np.cumsum(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    inside = ordered >= 0
    kept, cells = counted[inside], ordered[inside]
    chain = np.unique(turn[inside], return_inverse=True)[1].ravel()
    dur = work.dur[kept].astype(float)
    count = int(chain.max()) + 1
    total = np.bincount(chain, dur, count)
    longest, shortest = np.zeros(count), np.full(count, np.inf)
    np.maximum.at(longest, chain, dur)
    np.minimum.at(shortest, chain, dur)
    if least_ns is None:
        return Chains(step.rows[kept], chain, longest)
    cell_of_chain = np.zeros(count, dtype=np.int64)
    cell_of_chain[chain] = cells
    cell_ns = np.bincount(cells, dur, len(least_ns))
    fused = least_ns[cell_of_chain] * total / np.maximum(cell_ns[cell_of_chain], 1)
    return Chains(step.rows[kept], chain, np.clip(fused, shortest, total))

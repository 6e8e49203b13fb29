"""What each rank lost anew on its way to each collective, and with what.

A late rank is late at collective after collective for one and the same reason, so its lateness is counted
once, where it arises: a delay is what a rank took longer than the median of the others since their last
collective. Lateness that it brought along is none, and neither is what it lost and made up for.

All ranks that take part are measured, not the last one only: what the others lose now and then is the noise
that a straggler must stand out from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tracelens.analysis.stragglers.medians import median_of_others
from tracelens.analysis.stragglers.segments import BLOCKED, COMM, GARBAGE, LATE, LOADING, OTHER, SILENT, TIMES
from tracelens.arrays import Bool, Float, Int
from tracelens.trace import is_step

HOLDS = (SILENT, LOADING, GARBAGE, BLOCKED)
"""What a host can lose its lead with while its GPU is busy; its launches are late afterwards."""


# A delay at a place where the others lose as much counts a few times less.
_WEIGHT = 5.0


class Delays(NamedTuple):
    """Delays of all ranks, one row for each collective that a rank took part in.

    Attributes:
        ranks: number of ranks.
        steps: number of steps.
        rank: position of the rank.
        step: position of the step.
        position: of the collective among those of the rank and step.
        ns: of the delay, by TIMES; OTHER has what nothing explains.
        typical_ns: what the ranks took since their last collective, in the median.
    """

    ranks: Sequence[int]
    steps: Sequence[str]
    rank: Int
    step: Int
    position: Int
    ns: Float
    typical_ns: Float

    def without_first(self) -> Delays:
        """All steps but the first."""
        kept = self.step > 0
        rows = (self.position[kept], self.ns[kept], self.typical_ns[kept])
        return Delays(self.ranks, self.steps[1:], self.rank[kept], self.step[kept] - 1, *rows)

    def by_step(self, kind: int) -> Float:
        """Delays of one kind: ns by rank and step."""
        total = np.zeros((len(self.ranks), len(self.steps)))
        np.add.at(total, (self.rank, self.step), self.ns[:, kind])
        return total

    def by_position(self, kind: int, ranks: Int) -> Float:
        """Delays of one kind over what is usual there: by rank, step and position among the collectives.

        A host that is slow by a tenth loses most where there is most to do, and so do the others at times.
        Relative to the time that all take there, and to what the other ranks lose there in the mean of all
        steps, it loses as much everywhere.
        """
        shape = len(self.ranks), len(self.steps), int(self.position.max(initial=0)) + 1
        ns, typical_ns = np.zeros(shape), np.zeros(shape)
        cells = self.rank, self.step, self.position
        ns[cells], typical_ns[cells] = self.ns[:, kind], self.typical_ns
        mean_ns = ns.mean(axis=1, keepdims=True)
        others_ns = (mean_ns.sum(axis=0) - mean_ns) / max(len(self.ranks) - 1, 1)
        usual_ns = typical_ns + max(float(self.typical_ns.mean()), 1.0) + _WEIGHT * others_ns
        result: Float = (ns / usual_ns)[ranks]
        return result


class DelayRecorder:
    """Collects delays, collective by collective."""

    def __init__(self) -> None:
        self._rows: list[tuple[Sequence[int], Sequence[str], Float, Float]] = []

    def add(self, ranks: Sequence[int], steps: Sequence[str], ns: Float, typical_ns: float) -> None:
        """One collective: its ranks, the step of each, their delays by `delays_of`, the typical time."""
        self._rows.append((ranks, steps, ns, np.full(len(ranks), typical_ns)))

    def delays(self) -> Delays:
        """All of them, of the steps alone."""
        ranks = sorted({rank for of_ranks, *_ in self._rows for rank in of_ranks})
        steps = list(
            dict.fromkeys(step for _, of_ranks, *_ in self._rows for step in of_ranks if is_step(step))
        )
        rank_code, step_code = (
            {value: code for code, value in enumerate(values)} for values in (ranks, steps)
        )
        count: Counter[tuple[int, int]] = Counter()
        rank, step, position, kept = [], [], [], []
        for of_ranks, of_steps, *_ in self._rows:
            for number, label in zip(of_ranks, of_steps, strict=True):
                kept.append(label in step_code)
                if kept[-1]:
                    cell = rank_code[number], step_code[label]
                    rank.append(cell[0])
                    step.append(cell[1])
                    position.append(count[cell])
                    count[cell] += 1
        ns = np.concatenate([row[2] for row in self._rows] or [np.empty((0, len(TIMES)))])
        typical_ns = np.concatenate([row[3] for row in self._rows] or [np.empty(0)])
        is_kept = np.array(kept, dtype=bool)
        return Delays(
            ranks,
            steps,
            np.array(rank, dtype=np.int64),
            np.array(step, dtype=np.int64),
            np.array(position, dtype=np.int64),
            ns[is_kept],
            typical_ns[is_kept],
        )


def delays_of(
    start: Int, begin: Float, times: Float, held: Float | None, unqueued: Bool, most: Float | None
) -> Float:
    """The delays of the ranks of one collective, ns by TIMES.

    Args:
        start: when each arrives.
        begin: when each left the collective before.
        times: what each did since then, by TIMES.
        held: what the host of each did from one launch to the other, by TIMES; None if unknown.
        unqueued: whether its kernel began as soon as it was launched.
        most: of the delay of each, None where that is not limited.
    """
    late = start - median_of_others(start[:, None].astype(float))[:, 0]
    extra = times - median_of_others(times)
    brought = np.maximum(begin - median_of_others(begin[:, None])[:, 0], 0) + np.maximum(extra[:, COMM], 0)
    own = np.maximum(late - brought, 0)
    if most is not None:
        own = np.clip(most, 0, own)
    ns = np.maximum(extra, 0)
    ns[:, COMM] = 0
    total = ns.sum(axis=1)
    ns *= np.minimum(own / np.maximum(total, 1), 1)[:, None]
    rest = own - ns.sum(axis=1)
    # A kernel that stood in no queue waited for its launch, although other work ran meanwhile.
    ns[:, LATE] += np.where(unqueued, rest, 0)
    ns[:, OTHER] += np.where(unqueued, 0, rest)
    if held is not None:
        more = np.maximum(held - median_of_others(held), 0)
        for kind in HOLDS:
            for unexplained in (LATE, OTHER):
                moved = np.minimum(np.maximum(more[:, kind] - ns[:, kind], 0), ns[:, unexplained])
                ns[:, kind] += moved
                ns[:, unexplained] -= moved
    return ns

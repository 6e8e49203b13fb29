"""The figures of a run that its summary is made of, read from the tables of its sections."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tracelens.analysis.host import HOST_CAUSES
from tracelens.analysis.step_timeline import COMMUNICATION, WAITING
from tracelens.arrays import Float
from tracelens.guard import Failure
from tracelens.table import Result, Table
from tracelens.trace import WHOLE

MOST = 0.5
"""A cause names what it explains more than this share of."""


class Spread(NamedTuple):
    """A figure of the ranks of a run.

    Attributes:
        mean: of the ranks.
        low, high: of single ranks.
        ranks: how many have it.
    """

    mean: float
    low: float
    high: float
    ranks: int

    @classmethod
    def of(cls, by_rank: Mapping[int, float]) -> Spread | None:
        """Over the ranks that have the figure; None where none has."""
        values = list(by_rank.values())
        return cls(sum(values) / len(values), min(values), max(values), len(values)) if values else None


class StepTimes(NamedTuple):
    """What the recorded steps take.

    Attributes:
        step_ns: the median step (the shorter of two in the middle), mean of the ranks: the one that findings
            and projections replay.
        low_ns, high_ns: the shortest and the longest step, likewise.
        deviation_ns: standard deviation of the steps; 0 for less than three.
        steps: how many all ranks recorded whole.
        marked: whether the recording marks steps; if not, all of it is one.
    """

    step_ns: float
    low_ns: float
    high_ns: float
    deviation_ns: float
    steps: int
    marked: bool


class ServingSteps(NamedTuple):
    """Steps of one kind that the ranks of a serving engine ran.

    Attributes:
        mean_ns: of all of them.
        by_rank: means of single ranks.
        steps: how many, of all ranks.
    """

    mean_ns: float
    by_rank: Spread
    steps: int


class RunFigures:
    """Reads what a summary says from the results of a report; what they do not have is None."""

    def __init__(self, results: Sequence[Result]) -> None:
        self._results = {result.analyzer: result for result in results}
        steps = self.table("steps", "steps")
        assert steps is not None, "no summary without steps"
        self._steps = steps

    def table(self, analyzer: str, name: str) -> Table | None:
        """A table with rows; None where the report has none."""
        result = self._results.get(analyzer)
        table = result.data.get(name) if result else None
        return table if table is not None and len(table) else None

    def section(self, analyzer: str) -> str:
        """The analyzer if the report has its section, else ''."""
        return analyzer if analyzer in self._results else ""

    def meta(self, analyzer: str) -> Mapping[str, Any]:
        """What a result says of itself as a whole."""
        return self._results[analyzer].meta if analyzer in self._results else {}

    def reason(self, analyzer: str, subject: str) -> str:
        """Why a result lacks something: the reason of its first skip about it, '' where it says nothing."""
        result = self._results.get(analyzer)
        reasons = [
            str(skip.reason)
            for skip in (result.skips if result else ())
            if subject in skip.subject or isinstance(skip.reason, Failure)
        ]
        return reasons[0] if reasons else ""

    @property
    def ranks(self) -> list[int]:
        return sorted(set(self._steps.array("rank").tolist()))

    def step_times(self) -> StepTimes:
        """The durations of the recorded steps."""
        labels, dur = self._steps.texts("step"), self._steps.array("dur_ns").tolist()
        by_step: dict[str, list[int]] = {}
        for label, ns in zip(labels, dur, strict=True):
            by_step.setdefault(label, []).append(ns)
        most = max(map(len, by_step.values()))
        means = sorted(sum(each) / len(each) for each in by_step.values() if len(each) == most)
        deviation = float(np.std(means, ddof=1)) if len(means) > 2 else 0.0
        marked = WHOLE not in by_step
        return StepTimes(means[(len(means) - 1) // 2], means[0], means[-1], deviation, len(means), marked)

    def share(self, column: str) -> Spread:
        """A column of the steps as a share of their duration."""
        part, whole = self._sums(column), self._sums("dur_ns")
        spread = Spread.of({rank: part[rank] / max(whole[rank], 1) for rank in whole})
        assert spread is not None
        return spread

    def total_ns(self, column: str) -> float:
        """A column of the steps, summed over ranks."""
        return float(self._steps.array(column).sum())

    def _sums(self, column: str) -> dict[int, float]:
        return by_rank(self._steps, self._steps.array(column))

    def mfu(self) -> Spread | None:
        """Model FLOPs utilization of the recorded steps, where it is known."""
        table = self.table("roofline", "utilisation")
        if table is None:
            return None
        step = set(zip(self._steps.array("rank").tolist(), self._steps.texts("step"), strict=True))
        keys = zip(table.array("rank").tolist(), table.texts("step"), strict=True)
        # Without FLOPs nothing was multiplied that a cost model knows.
        known = (table.array("mfu") >= 0) & (table.array("flops") > 0)
        rows = np.flatnonzero(np.array([key in step for key in keys], dtype=bool) & known)
        dur = table.array("dur_ns").astype(np.float64)
        used, whole = by_rank(table, table.array("mfu") * dur, rows), by_rank(table, dur, rows)
        return Spread.of({rank: used[rank] / max(whole[rank], 1) for rank in whole})

    def idle_causes(self) -> dict[str, float]:
        """Causes of idle time of all ranks as shares of it, largest first."""
        table = self.table("idle", "causes")
        if table is None:
            return {}
        total: dict[str, float] = {}
        for cause, ns in zip(table.texts("cause"), table.array("dur_ns").tolist(), strict=True):
            total[cause] = total.get(cause, 0.0) + ns
        whole = max(sum(total.values()), 1.0)
        return {cause: total[cause] / whole for cause in sorted(total, key=lambda cause: -total[cause])}

    def host_share(self) -> float:
        """Share of the idle time in which the GPU waits for the host, without the profiler's own work."""
        causes = set(HOST_CAUSES) - {"profiler"}
        return sum(share for cause, share in self.idle_causes().items() if cause in causes)

    def waiting(self) -> Spread | None:
        """Time in which a rank only waits for others in communication, as a share of its recorded time."""
        whole, waiting, _ = self._states()
        return Spread.of({rank: waiting.get(rank, 0) / max(whole[rank], 1) for rank in whole})

    def waiting_in_exposed(self) -> float:
        """Share of the exposed communication that is waiting for other ranks; 0 where unknown."""
        _, waiting, moving = self._states()
        waiting_ns, moving_ns = sum(waiting.values()), sum(moving.values())
        return waiting_ns / max(waiting_ns + moving_ns, 1)

    def _states(self) -> tuple[Mapping[int, float], Mapping[int, float], Mapping[int, float]]:
        """Recorded, waiting and moving time by rank; none where collectives were not matched across ranks."""
        ranks, shares = self.table("collectives", "ranks"), self.table("step_timeline", "shares")
        if shares is None or ranks is None or (ranks.array("unmatched_ns") >= ranks.array("comm_ns")).all():
            return {}, {}, {}
        state, dur = shares.coded("state"), shares.array("dur_ns")
        waiting, moving = (np.flatnonzero(state.equals(name)) for name in (WAITING, COMMUNICATION))
        return by_rank(shares, dur), by_rank(shares, dur, waiting), by_rank(shares, dur, moving)

    def peak_bytes(self) -> Spread | None:
        """Most GPU memory allocated in a step."""
        table = self.table("steps", "metrics")
        if table is None:
            return None
        rows = np.flatnonzero(table.coded("metric").equals("memory.peak"))
        return Spread.of(by_rank(table, table.array("value"), rows, max))

    def serving_steps(self) -> dict[str, ServingSteps]:
        """The steps of a serving engine by kind."""
        table = self.table("serving", "ranks")
        if table is None:
            return {}
        kinds: dict[str, ServingSteps] = {}
        for kind in dict.fromkeys(table.texts("kind")):
            rows = np.flatnonzero(table.coded("kind").equals(kind))
            dur, count = (
                by_rank(table, table.array("dur_ns"), rows),
                by_rank(table, table.array("count"), rows),
            )
            spread = Spread.of({rank: dur[rank] / max(count[rank], 1) for rank in dur})
            assert spread is not None
            mean = sum(dur.values()) / max(sum(count.values()), 1)
            kinds[kind] = ServingSteps(mean, spread, int(sum(count.values())))
        return kinds

    def served_tokens_per_s(self) -> float | None:
        """Tokens of prompts and answers per second of the ranks' steps; None unless all steps tell theirs."""
        table = self.table("serving", "ranks")
        if table is None or (table.array("tokens") < 0).any():
            return None
        tokens, dur = by_rank(table, table.array("tokens")), by_rank(table, table.array("dur_ns"))
        return sum(tokens[rank] / max(dur[rank], 1) * 1e9 for rank in tokens)


def by_rank(
    table: Table,
    values: NDArray[Any],
    rows: NDArray[np.intp] | None = None,
    merge: Callable[[Sequence[float]], float] = sum,
) -> dict[int, float]:
    """Rank to what the values of its rows come to."""
    ranks: Sequence[int] = table.array("rank").tolist()
    collected: dict[int, list[float]] = {}
    chosen: Float = np.asarray(values, dtype=np.float64)
    for row in range(len(ranks)) if rows is None else rows.tolist():
        collected.setdefault(ranks[row], []).append(float(chosen[row]))
    return {rank: merge(each) for rank, each in sorted(collected.items())}

"""Why a side is slower: the largest causes of the difference, or the largest moves of stored metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tracelens.compare.gate.runs import Side
from tracelens.table import Result

MOST = 5


class Cause(NamedTuple):
    """One part of the difference of the step times, ns per step."""

    name: str
    base_ns: float
    candidate_ns: float

    @property
    def delta_ns(self) -> float:
        return self.candidate_ns - self.base_ns


_LEVELS = ("category", "op", "kernel")
_TIMES = ("category[", "op[")


def of_diff(result: Result, most: int = MOST) -> tuple[Cause, ...]:
    """The largest causes in a result of `diff`: by what happened, and in which op most of it did."""
    table = result.data["waterfall"]
    level, name, cause = (table.texts(column) for column in ("level", "name", "cause"))
    base, candidate = (table.array(column).astype(float) for column in ("base_ns", "cand_ns"))
    causes = []
    for row, text in enumerate(level):
        if text != "cause" or base[row] == candidate[row]:
            continue
        inside = [
            other
            for other, kind in enumerate(level)
            if kind == "op" and cause[other] == name[row] and _same_way(row, other, candidate - base)
        ]
        example = max(inside, key=lambda other: abs(candidate[other] - base[other]), default=None)
        where = f", most in {name[example]}" if example is not None else ""
        causes.append(Cause(f"{name[row]}{where}", base[row], candidate[row]))
    return tuple(sorted(causes, key=lambda part: -abs(part.delta_ns))[:most])


def _same_way(row: int, other: int, delta: np.ndarray) -> bool:
    return bool(delta[row] * delta[other] > 0)


def of_metrics(base: Side, candidate: Side, most: int = MOST) -> tuple[Cause, ...]:
    """The ops and kernel classes whose time moved most, from stored metrics."""
    names = _names(base, candidate, "op[") or _names(base, candidate, "category[")
    idle = ["idle.time"] if base.find("idle.time") and candidate.find("idle.time") else []
    causes = [
        Cause(name.removesuffix(".time"), *(_mean(side, name) for side in (base, candidate)))
        for name in [*names, *idle]
    ]
    moved = [cause for cause in causes if cause.delta_ns]
    return tuple(sorted(moved, key=lambda cause: -abs(cause.delta_ns))[:most])


def _names(base: Side, candidate: Side, start: str) -> Sequence[str]:
    return sorted(
        {
            name
            for side in (base, candidate)
            for run in side.runs
            for name in run.values
            if name.startswith(start) and name.endswith(".time")
        }
    )


def _mean(side: Side, metric: str) -> float:
    return float(np.mean([run.mean() for run in side.each_step(metric)]))

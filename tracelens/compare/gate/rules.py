"""Rules of the gate: a metric, a sense and a limit, as text.

    step.time<=1.03              a number: the candidate is at most 1.03 times the base
    step.time<=+3%               the same
    step.time<=+2ms              a sign: the candidate is at most 2 ms above the base
    idle.fraction<=+0.01         ... at most 0.01 above it
    step.time<=120ms             a unit: the candidate is at most this, whatever the base
    moe.blocking_calls<=3 abs    "abs" says the same where there is no unit
    moe.blocking_calls<=0        0 is 0 either way
    busy.time>=0.95              >= is a lower limit

A metric may leave out its `.time`; ops, kernel classes and kernels stand in brackets: op[aten::mm].time. A
`*` there stands for any text, and all that match count together: kernel[*gemm*].time. rank[3].step.time is
the metric of one rank.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import isfinite
from typing import Literal

from tracelens.errors import TracelensError

Sense = Literal["<=", ">="]
Kind = Literal["ratio", "difference", "absolute"]

UNITS: dict[str, tuple[float, str]] = {
    "ns": (1, "ns"),
    "us": (1e3, "ns"),
    "µs": (1e3, "ns"),
    "ms": (1e6, "ns"),
    "s": (1e9, "ns"),
    "B": (1, "bytes"),
    "kB": (1e3, "bytes"),
    "MB": (1e6, "bytes"),
    "GB": (1e9, "bytes"),
    "KiB": (2**10, "bytes"),
    "MiB": (2**20, "bytes"),
    "GiB": (2**30, "bytes"),
    "%": (0.01, "fraction"),
}
"""Unit of a limit to (factor, the metric's unit)."""

PACE = "step.pace"
"""Step time without the profiler: one value for each part of the loop that was timed so."""

DEFAULT_RULES = (
    f"{PACE}<=1.01",
    "step.time<=1.01",
    "exposed_comm.fraction<=+0.01",
    "idle.fraction<=+0.01",
    "kernel.count<=1.01",
    "moe.blocking_calls<=+0.5",
    "memory.peak<=1.02",
)
"""Rules used by default; a rule whose metric is missing becomes a skip.

Small parts of a step are limited relative to the step: 10% more of almost nothing does not matter.
"""

PROFILED = ("step.time", "exposed_comm.fraction", "idle.fraction")
"""Default rules' metrics that are left out where both sides have the pace of the steps without the profiler.

The profiler's cost varies from run to run, and what it adds to them says nothing about the program.
"""

_RULE = re.compile(r"(?P<metric>.+)(?P<sense><=|>=)(?P<limit>[^<>=]*)", re.DOTALL)
_METRIC = re.compile(
    r"(?:rank\[\d{1,9}\]\.)?(?:(?:op|category|kernel)\[.+\](?:\.\w+)?|[A-Za-z_]\w*(?:\.\w+)*)", re.DOTALL
)
_LIMIT = re.compile(
    r"(?P<sign>[+-])?\s*(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
    rf"\s*(?P<unit>{'|'.join(sorted(UNITS, key=len, reverse=True))})?(?:\s*\b(?P<absolute>abs))?"
)
_LIKE = "write it like step.time<=1.03, step.time<=+2ms or 'moe.blocking_calls<=3 abs'"


@dataclass(frozen=True)
class Rule:
    """One rule; `str` gives text that reads as the same rule."""

    metric: str  # name in the `metrics` table of the analyzer `steps`, with or without its `.time`
    sense: Sense  # whether the limit is an upper or a lower one
    kind: Kind  # what is limited: candidate / base, candidate - base, or the candidate
    number: float  # the limit as written
    unit: str = ""  # of `number`, a key of UNITS; "" for the metric's own

    @property
    def limit(self) -> float:
        """The limit in the metric's own unit, or as a ratio."""
        return self.number * UNITS[self.unit][0] if self.unit else self.number

    def check_unit(self, unit: str) -> None:
        """Compare the limit's unit with the metric's.

        Raises:
            TracelensError: they differ, or a time or size has none.
        """
        if self.kind == "ratio" or (self.number == 0 and not self.unit):
            return
        limit_unit = UNITS[self.unit][1] if self.unit else ""
        if limit_unit != unit and not (limit_unit == "" and unit in ("count", "fraction")):
            fitting = (
                ", ".join(name for name, (_, metric_unit) in UNITS.items() if metric_unit == unit)
                or "no unit"
            )
            raise TracelensError(
                f"rule '{self}': {self.metric} is measured in {unit}, the limit in "
                f"{limit_unit or 'no unit'}; write it with {fitting}"
            )

    def __str__(self) -> str:
        digits = repr(abs(self.number)).removesuffix(".0")
        if self.kind == "ratio":
            return f"{self.metric}{self.sense}{digits}"
        if self.kind == "difference":
            # -0 needs a sign, too.
            return f"{self.metric}{self.sense}{'-' if self.number < 0 else '+'}{digits}{self.unit}"
        return f"{self.metric}{self.sense}{digits}{self.unit or ' abs'}"


def read_rule(text: str) -> Rule:
    """Parse a rule.

    Raises:
        TracelensError: not a rule; the message says what is wrong and how to write it.
    """
    parts = _RULE.fullmatch(text.strip())
    if parts is None:
        raise TracelensError(f"rule {text!r}: no limit; it begins with <= or >=; {_LIKE}")
    metric, limit = parts["metric"].strip(), _LIMIT.fullmatch(parts["limit"].strip())
    if not _METRIC.fullmatch(metric):
        raise TracelensError(f"rule {text!r}: {metric!r} is not a metric name; {_LIKE}")
    if limit is None or not isfinite(float(limit["number"])):
        raise TracelensError(
            f"rule {text!r}: {parts['limit'].strip()!r} is not a limit; {_LIKE} (units: {', '.join(UNITS)})"
        )
    sense: Sense = "<=" if parts["sense"] == "<=" else ">="
    number, unit, sign = float(limit["number"]), limit["unit"] or "", limit["sign"]
    if sign and limit["absolute"]:
        raise TracelensError(f"rule {text!r}: a signed limit is a difference and cannot be 'abs'")
    if sign:
        number = -number if sign == "-" and number else number
        if unit == "%":
            return Rule(metric, sense, "ratio", max(round(1 + number / 100, 12), 0.0))
        return Rule(metric, sense, "difference", number, unit)
    if unit or limit["absolute"] or number == 0:
        return Rule(metric, sense, "absolute", number, unit)
    return Rule(metric, sense, "ratio", number)


def default_rules() -> tuple[Rule, ...]:
    """DEFAULT_RULES, parsed."""
    return tuple(map(read_rule, DEFAULT_RULES))

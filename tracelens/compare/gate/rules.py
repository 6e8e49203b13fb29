"""Rules of the gate: a metric, a sense and a limit, as text; and the settings file that may hold them.

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

Settings stand in [tool.tracelens.gate] of pyproject.toml, or in [gate] of tracelens.toml.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tracelens.compare.thresholds import CONFIDENCE, DEFAULT_RULES
from tracelens.config_files import read_toml
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
class GateRule:
    """One rule; `str` gives text that reads as the same rule."""

    metric: str  # name in the `metrics` table of the analyzer `steps`, with or without its `.time`
    sense: Sense  # whether the limit is an upper or a lower one
    kind: Kind  # what is limited: candidate / base, candidate - base, or the candidate
    number: float  # the limit as written
    unit: str = ""  # of `number`, a key of UNITS; "" for the metric's own
    # Whether the rule is decided at the runs' resolution where they cannot show the limit; default rules are.
    at_resolution: bool = field(default=False, compare=False)

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


_FILES = (("tracelens.toml", ("gate",)), ("pyproject.toml", ("tool", "tracelens", "gate")))
_KEYS = ("rules", "confidence", "inconclusive", "min_effect")


class GateSettings(NamedTuple):
    """Gate settings of a file."""

    rules: tuple[str, ...] = ()  # as text; empty for the defaults
    confidence: float | None = None  # None if not set
    file: str = ""  # path of the file, "" if there is none
    inconclusive: str = ""  # "pass" or "fail", what an inconclusive verdict counts as; "" if not set
    min_effect: float | None = None  # share of the step; None if not set


class Options(NamedTuple):
    """What a gate is to do; `GateSettings` with the defaults, and what the caller sets before them."""

    rules: tuple[GateRule, ...]  # empty for the defaults
    confidence: float
    min_effect: float

    @staticmethod
    def of(
        loaded: GateSettings, rules: Sequence[str], confidence: float | None, min_effect: float | None
    ) -> Options:
        """The options: what is set here first, then the file's, then the defaults."""
        levels = (confidence, loaded.confidence, CONFIDENCE)
        effects = (min_effect, loaded.min_effect, 0.0)
        return Options(
            tuple(read_rule(text) for text in rules or loaded.rules),
            next(level for level in levels if level is not None),
            next(effect for effect in effects if effect is not None),
        )


def read_rule(text: str) -> GateRule:
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
            return GateRule(metric, sense, "ratio", max(round(1 + number / 100, 12), 0.0))
        return GateRule(metric, sense, "difference", number, unit)
    if unit or limit["absolute"] or number == 0:
        return GateRule(metric, sense, "absolute", number, unit)
    return GateRule(metric, sense, "ratio", number)


def default_rules() -> tuple[GateRule, ...]:
    """DEFAULT_RULES, parsed; where runs cannot show their limits, they are decided at what runs can show."""
    return tuple(replace(read_rule(text), at_resolution=True) for text in DEFAULT_RULES)


def settings(config: str | None = None, start: Path | None = None) -> GateSettings:
    """The settings in a file, or in the nearest one.

    Args:
        config: the file; None searches for tracelens.toml and pyproject.toml with such a section.
        start: folder to search first, then those above; None is the working directory.

    Raises:
        TracelensError: the named file has no such section, cannot be read, or has unknown or wrong keys.
    """
    if config is not None:
        loaded = _read(Path(config))
        if loaded is None:
            raise TracelensError(
                f"{config}: no section [gate] or [tool.tracelens.gate]; add rules = [...] there"
            )
        return loaded
    start_folder = (start or Path.cwd()).resolve()
    for folder in (start_folder, *start_folder.parents):
        for name, _ in _FILES:
            if (folder / name).is_file() and (loaded := _read(folder / name)) is not None:
                return loaded
    return GateSettings()


def _read(path: Path) -> GateSettings | None:
    """The settings in a file, None if it has no section for them."""
    document = read_toml(path, "name another file with --config")
    # A file of any other name may use either section.
    paths = [keys for name, keys in _FILES if name == path.name] or [keys for _, keys in _FILES]
    for keys in paths:
        section: Any = document
        for key in keys:
            section = section.get(key) if isinstance(section, dict) else None
        if section is not None:
            table = ".".join(keys)
            break
    else:
        return None
    if not isinstance(section, dict):
        raise TracelensError(f"{path}: {table} is not a table; write [{table}] and rules = [...] below it")
    if unknown := [key for key in section if key not in _KEYS]:
        raise TracelensError(f"{path}: [{table}] has no key {unknown[0]!r}; known: {', '.join(_KEYS)}")
    rules = section.get("rules", [])
    if not isinstance(rules, list) or not all(isinstance(rule, str) for rule in rules):
        raise TracelensError(
            f"{path}: rules of [{table}] is not a list of strings; write rules = ['step.time<=1.03']"
        )
    for key, example in (("confidence", 0.99), ("min_effect", 0.005)):
        value = section.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise TracelensError(f"{path}: {key} of [{table}] is not a number; write {key} = {example}")
    inconclusive = section.get("inconclusive", "")
    if inconclusive not in ("", "pass", "fail"):
        raise TracelensError(f"{path}: inconclusive of [{table}] is neither 'pass' nor 'fail'")
    return GateSettings(
        tuple(rules), section.get("confidence"), str(path), inconclusive, section.get("min_effect")
    )

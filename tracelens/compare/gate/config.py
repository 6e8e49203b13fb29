"""Settings of the gate from a file: [tool.tracelens.gate] of pyproject.toml, or [gate] of tracelens.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracelens.compare.gate.gate import CONFIDENCE
from tracelens.compare.gate.rules import Rule, read_rule
from tracelens.errors import TracelensError
from tracelens.limits import read_config_file

_FILES = (("tracelens.toml", ("gate",)), ("pyproject.toml", ("tool", "tracelens", "gate")))
_KEYS = ("rules", "confidence", "inconclusive", "min_effect")


@dataclass(frozen=True)
class Settings:
    """Gate settings of a file."""

    rules: tuple[str, ...] = ()  # as text; empty for the defaults
    confidence: float | None = None  # None if not set
    file: str = ""  # path of the file, "" if there is none
    inconclusive: str = ""  # "pass" or "fail", what an inconclusive verdict counts as; "" if not set
    min_effect: float | None = None  # share of the step; None if not set


@dataclass(frozen=True)
class Options:
    """What a gate is to do; `Settings` with the defaults, and what the caller sets before them."""

    rules: tuple[Rule, ...]  # empty for the defaults
    confidence: float
    min_effect: float

    @staticmethod
    def of(
        loaded: Settings, rules: Sequence[str], confidence: float | None, min_effect: float | None
    ) -> Options:
        """The options: what is set here first, then the file's, then the defaults."""
        levels = (confidence, loaded.confidence, CONFIDENCE)
        effects = (min_effect, loaded.min_effect, 0.0)
        return Options(
            tuple(read_rule(text) for text in rules or loaded.rules),
            next(level for level in levels if level is not None),
            next(effect for effect in effects if effect is not None),
        )


def settings(config: str | None = None, start: Path | None = None) -> Settings:
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
    return Settings()


def _read(path: Path) -> Settings | None:
    """The settings in a file, None if it has no section for them."""
    try:
        document: Mapping[str, Any] = tomllib.loads(read_config_file(path).decode("utf-8"))
    except OSError as error:
        raise TracelensError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:  # not TOML, or not UTF-8
        raise TracelensError(f"{path}: {error}; correct it, or name another file with --config") from None
    # A file of any other name may use either section.
    paths = [keys for name, keys in _FILES if name == path.name] or [keys for _, keys in _FILES]
    for keys in paths:
        section: Any = document
        for key in keys:
            section = section.get(key) if isinstance(section, dict) else None
        if section is not None:
            return _checked(path, ".".join(keys), section)
    return None


def _checked(path: Path, table: str, section: Any) -> Settings:
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
    return Settings(
        tuple(rules), section.get("confidence"), str(path), inconclusive, section.get("min_effect")
    )

"""Settings of the gate from a file: [tool.tracelens.gate] of pyproject.toml, or [gate] of tracelens.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracelens.errors import TracelensError
from tracelens.limits import read_config_file

_FILES = (("tracelens.toml", ("gate",)), ("pyproject.toml", ("tool", "tracelens", "gate")))
_KEYS = ("rules", "confidence")


@dataclass(frozen=True)
class Settings:
    """Gate settings of a file."""

    rules: tuple[str, ...] = ()  # as text; empty for the defaults
    confidence: float | None = None  # None if not set
    file: str = ""  # path of the file, "" if there is none


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
    rules, confidence = section.get("rules", []), section.get("confidence")
    if not isinstance(rules, list) or not all(isinstance(rule, str) for rule in rules):
        raise TracelensError(
            f"{path}: rules of [{table}] is not a list of strings; write rules = ['step.time<=1.03']"
        )
    if confidence is not None and (isinstance(confidence, bool) or not isinstance(confidence, int | float)):
        raise TracelensError(f"{path}: confidence of [{table}] is not a number; write confidence = 0.98")
    return Settings(tuple(rules), confidence, str(path))

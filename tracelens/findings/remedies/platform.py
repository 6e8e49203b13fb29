"""Vendor, frameworks and versions, as far as the traces show them."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tracelens.analysis.common import grammar
from tracelens.analysis.serving import rank_steps
from tracelens.errors import TracelensError
from tracelens.filenames import SIDECAR
from tracelens.limits import read_config_file
from tracelens.trace import Trace

AMD, NVIDIA, CPU = "amd", "nvidia", "cpu"

_FILE = Path(__file__).with_name("frameworks.toml")
_SCHEMA = "tracelens.run/"
_VENDORS = {
    AMD: re.compile(r"\b(?:amd|instinct|radeon|mi[23]\d\d\w?)\b", re.IGNORECASE),
    NVIDIA: re.compile(r"\b(?:nvidia|tesla|geforce|quadro|[abhv][1-3]00|gb?200)\b", re.IGNORECASE),
}
_CALLS = {AMD: re.compile("^hip[A-Z]"), NVIDIA: re.compile("^cu(?:da)?[A-Z]")}


class Platform(NamedTuple):
    """What a run ran on and with.

    Attributes:
        vendor: AMD, NVIDIA, CPU, or "" where nothing shows it.
        frameworks: names in frameworks.toml; empty where nothing shows one.
        versions: of software, by name.
    """

    vendor: str = ""
    frameworks: tuple[str, ...] = ()
    versions: Mapping[str, str] = {}


class _Framework(NamedTuple):
    """By what one framework is told, see frameworks.toml."""

    name: str
    frames: re.Pattern[str] | None
    ops: re.Pattern[str] | None
    engine: str
    program: str
    includes: tuple[str, ...]

    def shows(self, trace: Trace, versions: Mapping[str, str], engines: Iterable[str]) -> bool:
        return (
            self.program in versions
            or self.engine in engines
            or _occurs(trace, "op", self.ops)
            or _occurs(trace, "python", self.frames)
        )


def platform_of(trace: Trace) -> Platform:
    """What one rank's trace shows, and `run.json` beside it."""
    return trace.once(_platform_of)


def joined(platforms: Iterable[Platform]) -> Platform:
    """What the ranks of a run show together: mostly one of them says it for all."""
    each = list(platforms)
    vendors = {platform.vendor for platform in each} - {""}
    shown = {name for platform in each for name in platform.frameworks}
    versions = {name: version for platform in each for name, version in platform.versions.items()}
    return Platform(vendors.pop() if len(vendors) == 1 else "", _outermost(shown), versions)


def _platform_of(trace: Trace) -> Platform:
    versions = {**_recorded_versions(trace), **trace.meta.software}
    engines = _engines(trace)
    shown = {framework.name for framework in _frameworks() if framework.shows(trace, versions, engines)}
    return Platform(_vendor(trace, versions), _outermost(shown), versions)


def _vendor(trace: Trace, versions: Mapping[str, str]) -> str:
    if trace.meta.cpu_only:
        return CPU
    named = {name for name, sign in _VENDORS.items() if any(map(sign.search, trace.meta.devices.values()))}
    if len(named) == 1:
        return named.pop()
    called = {name for name, sign in _CALLS.items() if _occurs(trace, "launch", sign)}
    if len(called) == 1:
        return called.pop()
    runtimes = {vendor for vendor, runtime in ((AMD, "hip"), (NVIDIA, "cuda")) if runtime in versions}
    return runtimes.pop() if len(runtimes) == 1 else ""


def _engines(trace: Trace) -> list[str]:
    """Serving engines: of the labeled steps, else those whose own code or ops the trace has."""
    if engine := rank_steps(trace).engine:
        return re.split(" or |, ", engine)
    return [
        engine.name
        for engine in grammar().engines
        if _occurs(trace, "python", engine.frames) or _occurs(trace, "op", engine.ops)
    ]


def _occurs(trace: Trace, kind: str, sign: re.Pattern[str] | None) -> bool:
    """Whether an event of a kind has such a name."""
    events = trace.arrays
    named = [code for code, name in enumerate(events.names) if sign is not None and sign.search(name)]
    return bool(named) and bool((np.isin(events.name, named) & events.where(kind)).any())


def _outermost(shown: set[str]) -> tuple[str, ...]:
    """Without those that another one is built on, in the order of the file."""
    inner = {name for framework in _frameworks() if framework.name in shown for name in framework.includes}
    return tuple(framework.name for framework in _frameworks() if framework.name in shown - inner)


def _recorded_versions(trace: Trace) -> dict[str, str]:
    """What `run.json` beside a local trace says; nothing where there is none of ours."""
    path = Path(trace.meta.path)
    try:
        content: Any = json.loads(read_config_file(path.with_name(SIDECAR)))
    except (OSError, ValueError, RecursionError, TracelensError):
        return {}
    if not isinstance(content, dict) or not str(content.get("schema", "")).startswith(_SCHEMA):
        return {}
    software = content.get("software")
    return (
        {str(name): str(version) for name, version in software.items()} if isinstance(software, dict) else {}
    )


@cache
def _frameworks() -> tuple[_Framework, ...]:
    entries = tomllib.loads(_FILE.read_text(encoding="utf-8"))["framework"]
    return tuple(
        _Framework(
            name=entry["name"],
            frames=_pattern(entry.get("frames")),
            ops=_pattern(entry.get("ops")),
            engine=entry.get("engine", ""),
            program=entry.get("program", ""),
            includes=tuple(entry.get("includes", ())),
        )
        for entry in entries
    )


def _pattern(text: str | None) -> re.Pattern[str] | None:
    return None if text is None else re.compile(text)

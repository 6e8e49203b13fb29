"""What to do about a finding: the entries of remedies.toml that hold for a platform."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tracelens.findings.remedies.platform import AMD, CPU, NVIDIA, Platform

_FILE = Path(__file__).with_name("remedies.toml")
_ANY_GPU = "gpu"
_BEST_KNOWN, _MOST_BEST = "Best known:", 2
_BOUND = re.compile(r"(>=|<)\s*(\d+(?:\.\d+)*)")
_WORDS = {
    "graph": {AMD: "HIP graph", NVIDIA: "CUDA graph", "": "CUDA or HIP graph"},
    "library": {AMD: "RCCL", NVIDIA: "NCCL", "": "NCCL or RCCL"},
}


class Remedy(NamedTuple):
    """One entry of remedies.toml, or of a plugin; the head of that file says what the fields mean."""

    text: str
    vendor: tuple[str, ...] = ()
    framework: tuple[str, ...] = ()
    versions: Mapping[str, str] = {}
    plain: bool = False
    best: bool = False
    in_graphs: bool | None = None

    def fits(self, platform: Platform, in_graphs: bool = False) -> bool:
        """Whether vendor, versions and how the work is launched allow it; frameworks apart."""
        if self.in_graphs not in (None, in_graphs):
            return False
        vendors = {platform.vendor} | ({_ANY_GPU} if platform.vendor != CPU else set())
        return (not self.vendor or not vendors.isdisjoint(self.vendor)) and all(
            _within(platform.versions.get(name, ""), bound) for name, bound in self.versions.items()
        )


def remedy(detector: str, platform: Platform, general: str = "", *, in_graphs: bool = False) -> str:
    """What to do about what a detector finds, for this platform.

    Args:
        detector: by name.
        platform: that the traces show.
        general: for a detector without entries, such as a plugin's.
        in_graphs: whether graphs launch already what it finds.
    """
    fitting = [entry for entry in remedies().get(detector, ()) if entry.fits(platform, in_graphs)]
    specific = [entry for entry in fitting if not set(platform.frameworks).isdisjoint(entry.framework)]
    chosen = [
        entry for entry in fitting if entry in specific or not (entry.framework or (entry.plain and specific))
    ]
    sentences = [entry.text for entry in chosen]
    best = [entry.text for entry in fitting if entry.best]
    if best and not platform.frameworks:
        sentences += [_BEST_KNOWN, *best[:_MOST_BEST]]
    return _worded(" ".join(sentences), platform) or general


def entries(detector: str, platform: Platform) -> tuple[Remedy, ...]:
    """All entries of a detector, for any platform, in the words of this one."""
    return tuple(entry._replace(text=_worded(entry.text, platform)) for entry in remedies().get(detector, ()))


def _worded(text: str, platform: Platform) -> str:
    """A text with the platform's words in place of {graph} and the like."""
    words = {name: by_vendor.get(platform.vendor, by_vendor[""]) for name, by_vendor in _WORDS.items()}
    words["megatron"] = "Primus (Megatron backend)" if "primus" in platform.frameworks else "Megatron-LM"
    return re.sub(r"\{(\w+)\}", lambda name: words.get(name[1], name[0]), text)


def add_remedy(detector: str, entry: Remedy) -> None:
    """Add an entry for a detector behind those of remedies.toml; for plugins."""
    known = remedies()
    known[detector] = (*known.get(detector, ()), entry)


@cache
def remedies() -> dict[str, tuple[Remedy, ...]]:
    """All entries by detector."""
    content = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    return {detector: tuple(map(_entry, entries)) for detector, entries in content.items()}


def _entry(fields: Mapping[str, Any]) -> Remedy:
    return Remedy(
        text=fields["text"],
        vendor=tuple(fields.get("vendor", ())),
        framework=tuple(fields.get("framework", ())),
        versions=fields.get("versions", {}),
        plain=fields.get("plain", False),
        best=fields.get("best", False),
        in_graphs=fields.get("in_graphs"),
    )


def _within(version: str, bound: str) -> bool:
    """Whether a version keeps to a bound; an unknown one counts as recent."""
    match = _BOUND.fullmatch(bound)
    assert match, bound
    recent = match[1] == ">="
    numbers = re.match(r"\d+(?:\.\d+)*", version)
    if not numbers:
        return recent
    is_recent = _numbers(numbers[0]) >= _numbers(match[2])
    return is_recent == recent


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))

"""What tests look at in a trace: its scopes, as torch's profiler wrote them."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch.profiler import ProfilerActivity, profile


class Scope(NamedTuple):
    """A scope, times in us."""

    name: str
    start: float
    end: float
    tid: int

    def holds(self, other: Scope) -> bool:
        """Whether the other one lies inside, on the same thread."""
        return self.tid == other.tid and self.start <= other.start and other.end <= self.end

    def beside(self, other: Scope) -> bool:
        """Whether they have no time in common."""
        return self.end <= other.start or other.end <= self.start


def read(path: Path) -> dict[str, Any]:
    """The JSON of a trace."""
    found: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return found


def scopes(trace: dict[str, Any], category: str = "user_annotation") -> list[Scope]:
    """The scopes of a trace in order of time."""
    found = [event for event in trace["traceEvents"] if event.get("cat") == category]
    return sorted(
        (Scope(event["name"], event["ts"], event["ts"] + event["dur"], event["tid"]) for event in found),
        key=lambda scope: (scope.start, -scope.end),
    )


def names(found: Sequence[Scope]) -> list[str]:
    """Names of scopes, in their order."""
    return [scope.name for scope in found]


def events_of(work: Callable[[], Any]) -> list[dict[str, Any]]:
    """All events of a piece of work, on the CPU."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        work()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events


def profiled(work: Callable[[], Any]) -> list[Scope]:
    """The scopes of a piece of work."""
    return scopes({"traceEvents": events_of(work)})


def only(found: Sequence[Scope], name: str) -> Scope:
    """The one scope of this name."""
    (scope,) = (scope for scope in found if scope.name == name)
    return scope

"""What the profiler itself says that it lost: Kineto writes its own log into the trace."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

_LOGS = ("ERROR", "WARNING", "INFO")
_STOPPED = re.compile(
    r"Exceeded max GPU buffer count|collection was stopped early|terminating tracing"
    r"|CUPTI stopped early\? = [1-9]",
    re.IGNORECASE,
)
_DROPPED = re.compile(
    r"\b[Dd]ropped (\d+)(?: \w+)? (?:records|events|activities)|(\d+) (?:\w+ )?records? dropped"
)
_UNEXPECTED = re.compile(r"(CPU GPU out-of-order|Unexpected CUDA events) = (\d+)")
_PREFIX = re.compile(r"^\w+:[\d\- :]+ \d+:\d+ [\w.]+:\d+\] ")
_LONGEST = 300


def reported_losses(keys: Mapping[str, object]) -> tuple[str, ...]:
    """The lines of the profiler's log that tell of lost records, without duplicates.

    Args:
        keys: of the trace, before and after its events.
    """
    lines = (line for name in _LOGS for line in _lines(keys.get(name)) if _is_loss(line))
    return tuple(dict.fromkeys(_PREFIX.sub("", line)[:_LONGEST] for line in lines))


def _lines(log: object) -> Iterator[str]:
    entries = log if isinstance(log, list) else [log]
    yield from (entry for entry in entries if isinstance(entry, str))


def _is_loss(line: str) -> bool:
    if _STOPPED.search(line):
        return True
    dropped = _DROPPED.search(line)
    if dropped and int(dropped[1] or dropped[2]):
        return True
    return any(int(count) for _, count in _UNEXPECTED.findall(line))

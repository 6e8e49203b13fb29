"""The least of a failing mutant that still fails: fewer mutations, then fewer events, then fewer keys."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from tests.fuzz.check import STAGES, check
from tests.fuzz.mutate import Mutant
from tests.fuzz.sources import Document

T = TypeVar("T")
Key = tuple[str, str, str]


def minimise(mutant: Mutant, key: Key, *, patience_s: float = 60) -> tuple[Mutant, list[Document]]:
    """A mutant with fewer mutations, and its traces with fewer events, that fail in the same way."""
    needed = tuple(name for name in STAGES if key[0].startswith((name, f"render {name}")))
    end = time.monotonic() + patience_s

    def fails(traces: Sequence[Document]) -> bool:
        if time.monotonic() > end:
            return False
        return key in {failure.key for failure in check(traces, mutant.source, needed).failures}

    steps = least(list(mutant.steps), lambda steps: fails(replace(mutant, steps=tuple(steps)).documents()))
    smaller = replace(mutant, steps=tuple(steps))
    traces = smaller.documents()
    for place in reversed(range(len(traces))):
        fewer = traces[:place] + traces[place + 1 :]
        if fewer and fails(fewer):
            traces = fewer
    for document in traces:
        events = document["traceEvents"]
        if isinstance(events, list):
            document["traceEvents"] = least(events, _with(traces, document, "traceEvents", fails))
        for name in [name for name in document if name != "traceEvents"]:
            value = document.pop(name)
            if not fails(traces):
                document[name] = value
    return smaller, traces


def _with(
    traces: list[Document], document: Document, name: str, fails: Callable[[Sequence[Document]], bool]
) -> Callable[[list[T]], bool]:
    def test(values: list[T]) -> bool:
        before = document[name]
        document[name] = values
        try:
            return fails(traces)
        finally:
            document[name] = before

    return test


def least(items: list[T], fails: Callable[[list[T]], bool]) -> list[T]:
    """A part of the items that fails and of which no piece can be left out (delta debugging)."""
    pieces = 2
    while len(items) >= 2:
        size = max(len(items) // pieces, 1)
        for start in range(0, len(items), size):
            rest = items[:start] + items[start + size :]
            if rest and fails(rest):
                items, pieces = rest, max(pieces - 1, 2)
                break
        else:
            if size == 1:
                break
            pieces = min(pieces * 2, len(items))
    return items

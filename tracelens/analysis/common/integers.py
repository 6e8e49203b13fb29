"""Lists of integers that the profiler recorded as text."""

from __future__ import annotations

from tracelens.trace import decoded

_LARGEST = 1 << 53
"""No rank, count or size is larger, and sums of them stay within 64 bits."""


def integers(text: str) -> list[int]:
    """A JSON list of integers; empty for anything else, such as a list that the profiler cut off."""
    numbers = decoded(text)
    return numbers if all(type(item) is int and abs(item) < _LARGEST for item in numbers) else []

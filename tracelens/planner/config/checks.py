"""Checks that the parts of a run's settings share. No torch here."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from tracelens.errors import TracelensError, UnknownName


def at_least_one(part: object, names: Iterable[str]) -> None:
    """Raise TracelensError for the first of these fields that is below 1."""
    for name in names:
        if getattr(part, name) < 1:
            raise TracelensError(f"{name} must be at least 1, not {getattr(part, name)}")


def one_of(part: object, choices: Mapping[str, Collection[object]]) -> None:
    """Raise UnknownName for the first of these fields that has none of its values."""
    for name, known in choices.items():
        if getattr(part, name) not in known:
            raise UnknownName(name, str(getattr(part, name)), [str(value) for value in known])

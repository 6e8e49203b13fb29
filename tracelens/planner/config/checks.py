"""Checks shared by the parts of a run's configuration. No torch here."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from tracelens.errors import TracelensError, UnknownName


def at_least_one(part: object, names: Iterable[str]) -> None:
    """Raise TracelensError for the first of these fields that is below 1."""
    for name in names:
        if getattr(part, name) < 1:
            raise TracelensError(f"{name} must be at least 1, not {getattr(part, name)}")


@cache
def literals(kind: Any) -> Mapping[str, tuple[object, ...]]:
    """The fields of a class that are typed as a Literal, with their values."""
    hints = get_type_hints(kind).items()
    return {name: get_args(hint) for name, hint in hints if get_origin(hint) is Literal}


def one_of(part: object, choices: Mapping[str, Collection[object]] | None = None) -> None:
    """Raise UnknownName for the first field without a valid value; by default the `literals` are checked."""
    kind: Any = type(part)
    for name, known in (literals(kind) if choices is None else choices).items():
        if getattr(part, name) not in known:
            raise UnknownName(name, str(getattr(part, name)), [str(value) for value in known])

"""Every error a user can cause, each with a one-line message: what, where, what to do.

The command line prints `str(error)` and exits with code 2; nothing else in the package prints or exits.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from tracelens.printable import printable
from tracelens.version import DISTRIBUTION


class TracelensError(Exception):
    """Base of all errors that tracelens raises on purpose; its text is one printable line."""

    def __str__(self) -> str:
        return printable(super().__str__())


class ParseError(TracelensError):
    """The input holds nothing that can be reported.

    Args:
        path: the input as the user named it.
        problem: what is wrong, and what to do about it.
        offset: byte offset in the decompressed input where it was noticed, or None.
    """

    def __init__(self, path: str, problem: str, offset: int | None = None) -> None:
        where = path if offset is None else f"{path} (byte {offset})"
        super().__init__(f"{where}: {problem}")
        self.path = path
        self.offset = offset


class SchemaError(TracelensError):
    """A table does not fit its declared schema: a bug in an analyzer or a plugin, never in a trace."""


class UnknownName(TracelensError):
    """A parser, analyzer, renderer, ... of this name is not registered."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        close = get_close_matches(name, names, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names) or 'none'}"
        super().__init__(f"unknown {kind} {name!r}; {hint}")


class MissingExtra(TracelensError):
    """An optional library is not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(
            f"{feature} needs an optional library: pip install '{DISTRIBUTION}[{extra}]' "
            f"(in a checkout: pip install '.[{extra}]')"
        )
        self.extra = extra

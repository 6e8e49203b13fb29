"""Every error a user can cause, each with a one-line message: what, where, what to do.

The command line prints `str(error)` and exits with code 2; nothing else in the package prints or exits.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

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


def suggestion(word: str, known: Iterable[str]) -> str:
    """A question for the known word that is nearest to a wrong one, "" where none is near."""
    from difflib import get_close_matches  # no word is wrong in most commands

    close = get_close_matches(word, sorted(known), n=1)
    return f"did you mean {close[0]!r}?" if close else ""


class SchemaError(TracelensError):
    """A table does not fit its declared schema: a bug in an analyzer or a plugin, never in a trace."""


class UnknownName(TracelensError):
    """A parser, analyzer, renderer, ... of this name is not registered."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        hint = suggestion(name, names) or f"known: {', '.join(names) or 'none'}"
        super().__init__(f"unknown {kind} {name!r}; {hint}")


class WrongOption(TracelensError):
    """An analyzer has no such option, or its option no such value; the message says which there are."""


class MissingExtra(TracelensError):
    """An optional library is not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(
            f"{feature} needs an optional library: pip install '{DISTRIBUTION}[{extra}]' "
            f"(in a checkout: pip install '.[{extra}]')"
        )
        self.extra = extra


class DamageKind(StrEnum):
    """Why the bytes of an input end where they should not."""

    TRUNCATED = "truncated"  # the file itself is not whole
    CORRUPT = "corrupt"  # what follows is no data of its kind
    READ_ERROR = "read error"  # the disk or the network failed; the file may be whole


class Damage(NamedTuple):
    """Where an input ends though it should not."""

    kind: DamageKind
    reason: str  # for people
    byte: int  # of its decompressed contents, up to which it was read
    share: float = -1.0  # of its bytes that were read, -1 where its size is not known

    def __str__(self) -> str:
        part = f", {self.share:.0%} of the file" if 0 <= self.share < 1 else ""
        return f"{self.reason} at byte {self.byte} of its contents{part}"

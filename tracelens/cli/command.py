"""Commands made from requests: their parameters, and the values of a plain command line.

A command has the options of the requests that its function takes. typer reads any command line, and explains
what is wrong with one (`tracelens.cli.app`); but importing it, and pydantic for it, takes longer than reading
a small trace. So a line that names known options with values of their type is read here, to the same values.
Everything else is typer's: help, completion, mistakes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING
from pathlib import Path
from types import NoneType
from typing import Any, Literal, NamedTuple, NewType, get_args, get_origin, get_type_hints

from tracelens.session import CommandOption, Declared, declared, from_command_line

Given = NewType("Given", frozenset[str])
"""Names of the options that have a value on the command line, as a parameter of a command."""

_MANY_DIGITS = 15
"""A number of at most so many digits is the same to everybody who reads it."""


class Command(NamedTuple):
    """What is called for a command line, with values by name; it returns an exit code, or None for 0."""

    name: str
    doc: str | None
    parameters: Sequence[Declared]
    call: Callable[..., int | None]

    def values(self, words: Sequence[str]) -> dict[str, Any] | None:
        """The values of a plain command line; None for one that typer has to read."""
        options = {flag: item for item in self.parameters for flag in flags_of(item)}
        texts: dict[str, list[str]] = {}
        placed: list[str] = []
        rest = iter(words)
        for word in rest:
            if not _may_be_option(word):
                placed.append(word)
                continue
            flag, equals, text = word.partition("=")
            item = options.get(flag)
            if item is None or (equals and not (flag.startswith("--") and _takes_value(item))):
                return None
            if _takes_value(item) and not equals:
                text = next(rest, "--")
                if _may_be_option(text):
                    return None
            texts.setdefault(item.name, []).append(text)
        options_only = [item for item in self.parameters if not item.option.argument]
        try:
            return self._placed(placed) | {
                item.name: _value(item, texts.get(item.name, [])) for item in options_only
            }
        except ValueError:
            return None

    def _placed(self, words: list[str]) -> dict[str, Any]:
        """Values of the arguments; a list takes what the others leave."""
        arguments = [item for item in self.parameters if item.option.argument]
        values = {}
        for number, item in enumerate(arguments, 1):
            count = (
                len(words) - (len(arguments) - number) if get_origin(without_none(item.kind)) is list else 1
            )
            values[item.name], words = _value(item, words[: max(count, 0)]), words[max(count, 0) :]
        if words:
            raise ValueError
        return values


def command(
    function: Callable[..., int | None], settings: Mapping[str, CommandOption] | None = None
) -> Command:
    """The command that calls this function: it has the options of all its parameters.

    These are annotated with subclasses of `OptionGroup`, or with `Given`; options of one name in several of
    them are one option of the command line. `settings` are passed on as texts by name.
    """
    hints = {
        name: kind for name, kind in get_type_hints(function).items() if name not in ("return", "settings")
    }
    known: dict[str, Declared] = {}
    for kind in hints.values():
        for item in declared(kind) if kind is not Given else ():
            known.setdefault(item.name, item)
    texts = {name: Declared(name, str | None, None, item) for name, item in (settings or {}).items()}

    def call(**values: Any) -> int | None:
        given = Given(frozenset(name for name in known if values[name]))
        made = {
            name: given if kind is Given else from_command_line(kind, values) for name, kind in hints.items()
        }
        if settings is not None:
            made["settings"] = {name: values[name] for name in settings if values[name] is not None}
        return function(**made)

    return Command(function.__name__, function.__doc__, tuple((known | texts).values()), call)


def flags_of(item: Declared) -> tuple[str, ...]:
    """What names an option on the command line; nothing for an argument."""
    if item.option.argument:
        return ()
    long = f"--{item.name.replace('_', '-')}"
    return item.option.flags or (("-o", long) if item.name == "output" else (long,))


def without_none(kind: Any) -> Any:
    """The type of a parameter's value, where there is one."""
    return next(
        (part for part in get_args(kind) if NoneType in get_args(kind) and part is not NoneType), kind
    )


def _may_be_option(word: str) -> bool:
    return word.startswith("-") and word != "-"


def _takes_value(item: Declared) -> bool:
    return without_none(item.kind) is not bool


def _value(item: Declared, texts: list[str]) -> Any:
    """The value of a parameter, named so often; ValueError for one that typer has to read."""
    if not texts:
        if item.default is MISSING:
            raise ValueError
        return item.default
    kind, text = without_none(item.kind), texts[-1]
    if kind is bool:
        return True
    if kind == list[str]:
        return texts
    if get_origin(kind) is Literal and text not in get_args(kind):
        raise ValueError
    if kind not in (int, float):
        return Path(text) if kind is Path else text
    digits = text.replace(".", "", 1) if kind is float else text
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _MANY_DIGITS):
        raise ValueError
    number: float = kind(text)
    low, high = item.option.min, item.option.max
    if (low is not None and number < low) or (high is not None and number > high):
        raise ValueError
    return number

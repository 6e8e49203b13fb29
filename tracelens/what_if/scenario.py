"""Scenarios: named edits of a graph, one module or more of `scenarios/`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tracelens.errors import TracelensError
from tracelens.registry import Registry
from tracelens.what_if.graph import Edit, Recorded

_LEAST, _MOST = 1e-9, 1e9
"""Numbers of arguments are in between: what is beyond is a slip, and no duration times it is one."""


class NotApplicable(TracelensError):
    """A scenario has nothing to change in this run; its text says why, and becomes a Skip."""


@dataclass(frozen=True)
class ScenarioContext:
    """What a scenario is given.

    Attributes:
        recorded: the run as a graph, with its collectives and steps.
        device: name of the device that the run was recorded on, where the user gives it.
        device_file: TOML file that describes it, where the user gives one.
    """

    recorded: Recorded
    device: str | None = None
    device_file: str | None = None


Change = Callable[[ScenarioContext, Edit, str], str]


@dataclass(frozen=True)
class Scenario:
    """One kind of change.

    Attributes:
        name: as on the command line.
        doc: what would be otherwise, one line.
        change: (scene, edit, argument) -> the assumption that the projection rests on; edits in place.
        argument: what stands after the name, "" for nothing, such as "=GB/s".
        usual: arguments with which it is tried when nobody names a scenario.
    """

    name: str
    doc: str
    change: Change
    argument: str = ""
    usual: tuple[str, ...] = ("",)

    @property
    def grammar(self) -> str:
        """How it is written; in brackets what may be left out."""
        optional = self.argument and "" in self.usual
        return f"{self.name}[{self.argument}]" if optional else f"{self.name}{self.argument}"


SCENARIOS: Registry[Scenario] = Registry("scenario", "tracelens.what_if.scenarios")


def scenario(name: str, *, argument: str = "", usual: Sequence[str] = ("",)) -> Callable[[Change], Change]:
    """Register a function (scene, edit, argument) -> assumption as a scenario; its docstring is its text."""

    def keep(change: Change) -> Change:
        doc = (change.__doc__ or name).splitlines()[0]
        SCENARIOS.add(name, Scenario(name, doc, change, argument, tuple(usual)), change.__module__)
        return change

    return keep


@dataclass(frozen=True)
class ScenarioRequest:
    """Scenarios that are to hold together.

    Attributes:
        text: as the user wrote it; names the row.
        parts: (scenario, its argument) of each.
    """

    text: str
    parts: tuple[tuple[Scenario, str], ...]


def wish(text: str) -> ScenarioRequest:
    """What a text asks for: `name`, `name=value`, `name:what=value`, several of these joined by `+`.

    Raises:
        UnknownName: no scenario of that name.
        TracelensError: an argument where there is none, or none where one is needed.
    """
    return ScenarioRequest(text, tuple(_part(part) for part in _split(text)))


def usual() -> list[ScenarioRequest]:
    """Every scenario with its usual arguments; those that need an argument of the user's are not tried."""
    return [
        ScenarioRequest(item.name + (f"={argument}" if argument else ""), ((item, argument),))
        for _, item in SCENARIOS.items()
        for argument in item.usual
    ]


def _split(text: str) -> list[str]:
    """The parts of a text between each `+` that the name of a scenario follows."""
    names = "|".join(re.escape(name) for name, _ in SCENARIOS.items())
    return [part.strip() for part in re.split(rf"\+(?=\s*(?:{names})\s*(?:$|[+:=]))", text)]


def _part(text: str) -> tuple[Scenario, str]:
    mark = re.search(r"[:=]", text)
    name, argument = (text[: mark.start()], text[mark.end() :]) if mark else (text, "")
    # Behind a "+" may stand a name that nobody knows; then that one is told.
    item = [SCENARIOS.get(part.strip()) for part in name.split("+")][-1]
    if bool(argument) != bool(item.argument) and not (not argument and "" in item.usual):
        needs = f"needs an argument: {item.name}{item.argument}" if item.argument else "takes no argument"
        raise TracelensError(f"scenario {text!r}: {item.name} {needs}")
    return item, argument


def number(text: str, what: str) -> float:
    """A positive number of a scenario's argument.

    Raises:
        TracelensError: it is none.
    """
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not _LEAST <= value <= _MOST:
        raise TracelensError(
            f"scenario {what}: {text!r} is not a number above zero ({_LEAST:g} to {_MOST:g})"
        )
    return value


def efficiency(text: str, what: str) -> float:
    """A share of what is possible, above 0 and at most 1, of a scenario's argument.

    Raises:
        TracelensError: it is none.
    """
    value = number(text, what)
    if value > 1:
        raise TracelensError(f"scenario {what}: an efficiency is at most 1")
    return value

"""Scenarios: named edits of a graph, one module or more of `scenarios/`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import numpy as np

from tracelens.analysis.comm import MatchedCollective
from tracelens.analysis.common import choose_device, own_device
from tracelens.analysis.roofline import Costing, costing
from tracelens.arrays import Int
from tracelens.devices import Device
from tracelens.errors import TracelensError
from tracelens.registry import Registry
from tracelens.trace import Trace
from tracelens.what_if.graph import Edit, Graph, Node, Recorded

T = TypeVar("T")

_LEAST, _MOST = 1e-9, 1e9
"""Range of numbers in arguments; a number outside is a typo."""


class NotApplicable(TracelensError):
    """The run has nothing that a scenario changes; its text says why and becomes a Skip."""


@dataclass(frozen=True)
class ScenarioContext:
    """What a scenario may read."""

    recorded: Recorded  # the run as a graph, with its collectives and steps
    device: str | None = None  # name of the recorded device, if the user gives it
    device_file: str | None = None  # TOML file that describes it, if the user gives one
    _read: dict[Callable[..., Any], list[Any]] = field(default_factory=dict, init=False, repr=False)

    @property
    def graph(self) -> Graph:
        return self.recorded.graph

    def gpu_graph(self) -> Graph:
        """The graph of a run on GPUs.

        Raises:
            NotApplicable: it is a CPU-only run.
        """
        if all(trace.meta.cpu_only for trace in self.graph.run.traces):
            raise NotApplicable("CPU-only run: no launches, no GPU work, nothing waits for a GPU")
        return self.graph

    def meetings(self) -> tuple[Int, list[MatchedCollective]]:
        """The nodes of all meetings, and the collective of each."""
        meetings = np.flatnonzero(self.graph.kind == Node.MEET)
        matched = self.recorded.collectives.matched
        return meetings, [matched[number] for number in self.graph.collective[meetings].tolist()]

    def read(self, function: Callable[[Trace, Device | None], T]) -> list[T]:
        """What a function makes of each rank's trace and device, in order of rank; made once a run."""
        if function not in self._read:
            self._read[function] = [function(trace, self.device_of(trace)) for trace in self.graph.run.traces]
        return cast(list[T], self._read[function])

    def device_of(self, trace: Trace) -> Device | None:
        """The device of a rank: from the user, else from its trace; None if unknown."""
        return choose_device(self.device, self.device_file) or own_device(trace)


def work_costs(trace: Trace) -> Costing:
    """Costs of a rank's activities; call as `trace.once(work_costs)`."""
    return costing(trace, trace.work)


Change = Callable[[ScenarioContext, Edit, str], str]


@dataclass(frozen=True)
class Scenario:
    """One kind of change."""

    name: str  # as on the command line
    doc: str  # what it changes, one line
    change: Change  # (context, edit, argument) -> the assumptions of the projection; edits in place
    argument: str = ""  # syntax of what follows the name, such as "=GB/s"; "" for nothing
    usual: tuple[str, ...] = ("",)  # arguments tried when the user names no scenario

    @property
    def grammar(self) -> str:
        """Its syntax, optional parts in brackets."""
        optional = self.argument and "" in self.usual
        return f"{self.name}[{self.argument}]" if optional else f"{self.name}{self.argument}"


SCENARIOS: Registry[Scenario] = Registry("scenario", "tracelens.what_if.scenarios")


def scenario(name: str, *, argument: str = "", usual: Sequence[str] = ("",)) -> Callable[[Change], Change]:
    """Register a function (context, edit, argument) -> assumptions as a scenario with its docstring."""

    def keep(change: Change) -> Change:
        doc = (change.__doc__ or name).splitlines()[0]
        SCENARIOS.add(name, Scenario(name, doc, change, argument, tuple(usual)), change.__module__)
        return change

    return keep


@dataclass(frozen=True)
class ScenarioRequest:
    """Scenarios to apply together."""

    text: str  # as the user wrote it; names the row
    parts: tuple[tuple[Scenario, str], ...]  # (scenario, argument) of each


def parse_request(text: str) -> ScenarioRequest:
    """Parse `name`, `name=value` or `name:what=value`, several of them joined by `+`.

    Raises:
        UnknownName: no scenario of that name.
        TracelensError: an unexpected or a missing argument.
    """
    return ScenarioRequest(text, tuple(_part(part) for part in _split(text)))


def default_requests() -> list[ScenarioRequest]:
    """Every scenario with its usual arguments; those that need an argument from the user are left out."""
    return [
        ScenarioRequest(item.name + (f"={argument}" if argument else ""), ((item, argument),))
        for _, item in SCENARIOS.items()
        for argument in item.usual
    ]


def _split(text: str) -> list[str]:
    """Split a text at each `+` that a scenario name follows."""
    names = "|".join(re.escape(name) for name, _ in SCENARIOS.items())
    return [part.strip() for part in re.split(rf"\+(?=\s*(?:{names})\s*(?:$|[+:=]))", text)]


def _part(text: str) -> tuple[Scenario, str]:
    mark = re.search(r"[:=]", text)
    name, argument = (text[: mark.start()], text[mark.end() :]) if mark else (text, "")
    # A "+" may precede an unknown name; the error then names it.
    item = [SCENARIOS.get(part.strip()) for part in name.split("+")][-1]
    if bool(argument) != bool(item.argument) and not (not argument and "" in item.usual):
        needs = f"needs an argument: {item.name}{item.argument}" if item.argument else "takes no argument"
        raise TracelensError(f"scenario {text!r}: {item.name} {needs}")
    return item, argument


def number(text: str, subject: str) -> float:
    """Parse a positive number of a scenario's argument.

    Raises:
        TracelensError: it is none.
    """
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not _LEAST <= value <= _MOST:
        raise TracelensError(
            f"scenario {subject}: {text!r} is not a positive number ({_LEAST:g} to {_MOST:g})"
        )
    return value


def efficiency(text: str, subject: str) -> float:
    """Parse an efficiency in (0, 1] of a scenario's argument.

    Raises:
        TracelensError: it is none.
    """
    value = number(text, subject)
    if value > 1:
        raise TracelensError(f"scenario {subject}: an efficiency is at most 1")
    return value

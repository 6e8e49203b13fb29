"""Scenarios: named edits of a graph; the bundled ones are in the room `opportunities`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

import numpy as np
from msgspec import Struct, field

from tracelens.analysis.comm import MatchedCollective
from tracelens.analysis.roofline import Costing, costing
from tracelens.arrays import Int
from tracelens.devices import Device
from tracelens.errors import TracelensError
from tracelens.guard import Failure, guard
from tracelens.registry import Registry
from tracelens.trace import Trace
from tracelens.what_if.graph import Edit, Node, Recorded, RunGraph

T = TypeVar("T")

_LEAST, _MOST = 1e-9, 1e9
"""Range of numbers in arguments; a number outside is a typo."""


class NotApplicable(TracelensError):
    """The run has nothing that a scenario changes; its text says why and becomes a Skip."""


Read = Callable[[Trace, Device | None], Any]
"""Reads what a scenario needs of one rank beside the graph: (trace, device) -> a small picklable value."""


class Unread(Struct, frozen=True):
    """Why a function could not read a rank."""

    reason: str


def name_of(function: Read) -> str:
    """A name by which what a function read is found in another process."""
    return f"{function.__module__}.{function.__qualname__}"


def read_rank(functions: Iterable[Read], trace: Trace, device: Device | None) -> dict[str, Any]:
    """What each function, by `name_of`, reads of one rank, or why it cannot."""

    def value(function: Read) -> Any:
        part = f"what-if reading {function.__name__}, rank {trace.meta.rank}"
        try:
            made = guard(part, function, trace, device)
        except TracelensError as error:
            return Unread(str(error))
        return Unread(made) if isinstance(made, Failure) else made

    return {name_of(function): value(function) for function in functions}


class ScenarioContext(Struct, frozen=True):
    """What a scenario may read."""

    recorded: Recorded  # the run as a graph, with its collectives and steps
    traces: Sequence[Trace] = ()  # of its ranks where they are in memory, in order of rank
    reads: list[Mapping[str, Any]] = field(default_factory=list)  # what `read_rank` made of each, elsewhere
    _read: dict[Read, list[Any]] = field(default_factory=dict)
    _made: dict[tuple[Callable[..., Any], str], Any] = field(default_factory=dict)

    @property
    def graph(self) -> RunGraph:
        return self.recorded.graph

    def gpu_graph(self) -> RunGraph:
        """The graph of a run on GPUs.

        Raises:
            NotApplicable: it is a CPU-only run.
        """
        if all(rank.cpu_only for rank in self.graph.ranks):
            raise NotApplicable("CPU-only run: no launches, no GPU work, nothing waits for a GPU")
        return self.graph

    def meetings(self) -> tuple[Int, list[MatchedCollective]]:
        """The nodes of all meetings, and the collective of each."""
        meetings = np.flatnonzero(self.graph.kind == Node.MEET)
        matched = self.recorded.collectives.matched
        return meetings, [matched[number] for number in self.graph.collective[meetings].tolist()]

    def once(self, function: Callable[[ScenarioContext, str], T], argument: str) -> T:
        """What a function makes of this and an argument, whatever the edit; made once a run."""
        key = function, argument
        if key not in self._made:
            self._made[key] = function(self, argument)
        return cast(T, self._made[key])

    def read(self, function: Callable[[Trace, Device | None], T]) -> list[T]:
        """What a function makes of each rank's trace and device, in order of rank; made once a run.

        Raises:
            NotApplicable: it was not read where the traces were; see `reads` of `scenario`.
        """
        if function not in self._read:
            if self.traces:
                ranks = zip(self.traces, self.graph.ranks, strict=True)
                self._read[function] = [function(trace, rank.device) for trace, rank in ranks]
            else:
                name = name_of(function)
                if not self.reads or not all(name in read for read in self.reads):
                    raise NotApplicable("needs the traces; project it with `tracelens project whatif`")
                values = [read[name] for read in self.reads]
                if unread := next((value for value in values if isinstance(value, Unread)), None):
                    raise NotApplicable(unread.reason)
                self._read[function] = values
        return cast(list[T], self._read[function])


def work_costs(trace: Trace) -> Costing:
    """Costs of a rank's activities; call as `trace.once(work_costs)`."""
    return costing(trace, trace.work)


Change = Callable[[ScenarioContext, Edit, str], str]


class Scenario(Struct, frozen=True):
    """One kind of change."""

    name: str  # as on the command line
    doc: str  # what it changes, one line
    change: Change  # (context, edit, argument) -> the assumptions of the projection; edits in place
    argument: str = ""  # syntax of what follows the name, such as "=GB/s"; "" for nothing
    usual: tuple[str, ...] = ("",)  # arguments tried when the user names no scenario
    reads: tuple[Read, ...] = ()  # what it reads of each rank beside the graph
    in_reports: bool = True  # whether that is read for a report, whose findings may ask for the scenario

    @property
    def grammar(self) -> str:
        """Its syntax, optional parts in brackets."""
        optional = self.argument and "" in self.usual
        return f"{self.name}[{self.argument}]" if optional else f"{self.name}{self.argument}"


SCENARIOS: Registry[Scenario] = Registry("scenario", "tracelens.opportunities")


def scenario(
    name: str,
    *,
    argument: str = "",
    usual: Sequence[str] = ("",),
    reads: Sequence[Read] = (),
    in_reports: bool = True,
) -> Callable[[Change], Change]:
    """Register a function (context, edit, argument) -> assumptions as a scenario with its docstring.

    Args:
        name: as on the command line.
        argument: syntax of what follows the name; "" for nothing.
        usual: arguments tried when the user names no scenario.
        reads: functions (trace, device) -> small picklable value, all that it asks of `context.read`. They
            run where the traces are, which in a report of many ranks are other processes.
        in_reports: whether findings may ask for it, so that reports pay for what it reads.
    """

    def keep(change: Change) -> Change:
        doc = (change.__doc__ or name).splitlines()[0]
        item = Scenario(
            name=name,
            doc=doc,
            change=change,
            argument=argument,
            usual=tuple(usual),
            reads=tuple(reads),
            in_reports=in_reports,
        )
        SCENARIOS.add(name, item, change.__module__)
        return change

    return keep


class ScenarioRequest(Struct, frozen=True):
    """Scenarios to apply together."""

    text: str  # as the user wrote it; names the row
    parts: tuple[tuple[Scenario, str], ...]  # (scenario, argument) of each


def parse_request(text: str) -> ScenarioRequest:
    """Parse `name`, `name=value` or `name:what=value`, several of them joined by `+`.

    Raises:
        UnknownName: no scenario of that name.
        TracelensError: an unexpected or a missing argument.
    """
    names = "|".join(re.escape(name) for name, _ in SCENARIOS.items())
    parts = []
    # A "+" separates where a scenario name follows it.
    for joined in re.split(rf"\+(?=\s*(?:{names})\s*(?:$|[+:=]))", text):
        part = joined.strip()
        mark = re.search(r"[:=]", part)
        name, argument = (part[: mark.start()], part[mark.end() :]) if mark else (part, "")
        # A "+" may precede an unknown name; the error then names it.
        item = [SCENARIOS.get(word.strip()) for word in name.split("+")][-1]
        if bool(argument) != bool(item.argument) and not (not argument and "" in item.usual):
            needs = f"needs an argument: {item.name}{item.argument}" if item.argument else "takes no argument"
            raise TracelensError(f"scenario {part!r}: {item.name} {needs}")
        parts.append((item, argument))
    return ScenarioRequest(text, tuple(parts))


def default_requests() -> list[ScenarioRequest]:
    """Every scenario with its usual arguments; those that need an argument from the user are left out."""
    return [
        ScenarioRequest(item.name + (f"={argument}" if argument else ""), ((item, argument),))
        for _, item in SCENARIOS.items()
        for argument in item.usual
    ]


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

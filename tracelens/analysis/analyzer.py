"""Questions about a run: one module an analyzer, one public function, one `Result`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from tracelens.guard import Failure, guard
from tracelens.registry import Registry, purpose
from tracelens.table import Result, Schema, Skip, join, result
from tracelens.trace import Run

if TYPE_CHECKING:
    from tracelens.trace import Trace


T = TypeVar("T")

EMPTY: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Shared:
    """What several analyzers need of all ranks together: made once a run, shown in no report.

    Attributes:
        name: as in the `shared` of an analyzer.
        function: (parts, **options) -> what is shared.
        part: (trace, **options) -> what the function needs of this rank.
        options: names of the options that it takes.
        shared: names of what it needs itself that analyzers share.
    """

    name: str
    function: Callable[..., Any]
    part: Callable[..., Any]
    options: tuple[str, ...]
    shared: tuple[str, ...] = ()

    @property
    def requires(self) -> list[Shared]:
        """What has to be made before it."""
        return [*map(SHARED.get, self.shared)]

    def __call__(self, run: Run, results: Mapping[str, Any] = EMPTY, **options: Any) -> Any:
        """Make it for a run; arguments as for an analyzer."""
        made = {
            item.name: item(run, results, **options) for item in self.requires if item.name not in results
        }
        parts = [self.part_of(trace, **options) for trace in run.traces]
        return self.combine(parts, {**results, **made}, **options)

    def part_of(self, trace: Trace, **options: Any) -> Any:
        """What `combine` needs of one rank, or its Failure; it can be pickled, and holds no trace."""
        return guard(_on_rank(self.name, trace), self.part, trace, **_selected(options, _options(self.part)))

    def combine(self, parts: Sequence[Any], results: Mapping[str, Any] = EMPTY, **options: Any) -> Any:
        """What is shared, from the parts of all ranks in order of rank and what it needs besides.

        A Failure where a rank failed, or what it needs.
        """
        shared = [results[name] for name in self.shared]
        failures = [part for part in (*parts, *shared) if isinstance(part, Failure)]
        if failures:
            return failures[0]
        return guard(self.name, self.function, parts, *shared, **_selected(options, _options(self.function)))


@dataclass(frozen=True)
class Analyzer:
    """A registered analyzer.

    Most look at one rank after the other: they are functions of a run whose tables are the tables of its
    ranks, one below the other. Those that compare ranks have a `part`, which makes of one trace the little
    that the comparison needs, and a function of all parts. Either way the work on one rank can be done
    where its trace is, and only tables travel. What several comparisons need, such as clocks, is `shared`;
    those with `needs` also read the results of other analyzers.

    Attributes:
        name: as in `tracelens analyze NAME`.
        title: heading of its section in a report.
        doc: the question it answers, one line.
        order: position in a report; ties go by name.
        function: (run, **options) -> Result; for one that compares ranks ([parts], [*shared], [results],
            **options) -> Result, with those that it has.
        part: (trace, **options) -> what the function needs of this rank; None for most.
        options: names of the options that it takes.
        slow: it takes as long as all others together, and is worth a process of its own.
        needs: names of the analyzers whose results it reads.
        shared: names of what it shares with other analyzers.
    """

    name: str
    title: str
    doc: str
    order: int
    function: Callable[..., Result]
    part: Callable[..., Any] | None
    options: tuple[str, ...]
    slow: bool = False
    needs: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    tables: Mapping[str, Schema] = field(default_factory=dict)

    def __call__(self, run: Run, results: Mapping[str, Any] = EMPTY, **options: Any) -> Result:
        """Analyze `run`; options that this analyzer does not have are ignored.

        Args:
            run: the ranks.
            results: of other analyzers about the same run, and what they share, by name; what is needed and
                not there is made.
            options: of this analyzer, and of those that it needs.
        """
        if self.of_single_ranks and len(run.traces) > 1:
            combined = guard(self._part, self.function, run, **_selected(options, self.options))
            if not isinstance(combined, Failure):
                return self._named(combined, _selected(options, self.options))
        made = {
            item.name: item(run, results, **options) for item in self.requires if item.name not in results
        }
        parts = [self.part_of(trace, **options) for trace in run.traces]
        return self.combine(parts, {**results, **made}, **options)

    @property
    def of_single_ranks(self) -> bool:
        """Whether it looks at one rank after the other."""
        return self.part is None and not self.shared

    @property
    def requires(self) -> list[Analyzer | Shared]:
        """What has to be made before it."""
        return [*map(SHARED.get, self.shared), *map(ANALYZERS.get, self.needs)]

    def part_of(self, trace: Trace, **options: Any) -> Any:
        """What `combine` needs of one rank, or its Failure; it can be pickled, and holds no trace."""
        if self.part is not None:
            return guard(
                _on_rank(self._part, trace), self.part, trace, **_selected(options, _options(self.part))
            )
        if self.shared:
            return None
        own_options = _selected(options, self.options)
        return guard(_on_rank(self._part, trace), self.function, Run((trace,)), **own_options)

    def combine(self, parts: Sequence[Any], results: Mapping[str, Any] = EMPTY, **options: Any) -> Result:
        """The result for a run, from the parts of its ranks in order of rank and what it needs besides.

        Where a rank failed, tables of single ranks have those of the others; a comparison is not made.
        """
        shared = [results[name] for name in self.shared]
        failures = [part for part in (*parts, *shared) if isinstance(part, Failure)]
        if self.of_single_ranks:
            results_of_ranks = [part for part in parts if not isinstance(part, Failure)]
            joined = guard(self._part, join, results_of_ranks) if results_of_ranks else result({})
        elif failures:
            joined = result({})
        else:
            own_parts = [parts] if self.part is not None else []
            read = [{name: results[name] for name in self.needs}] if self.needs else []
            own_options = _selected(options, _options(self.function))
            joined = guard(self._part, self.function, *own_parts, *shared, *read, **own_options)
        if isinstance(joined, Failure):
            failures, joined = [*failures, joined], result({})
        skips = (Skip(self.title, failure) for failure in failures)
        return self._named(replace(joined, skips=(*joined.skips, *skips)), _selected(options, self.options))

    @property
    def _part(self) -> str:
        return f"analyzer {self.name}"

    def _named(self, result: Result, options: Mapping[str, Any]) -> Result:
        return replace(
            result,
            analyzer=self.name,
            title=result.title or self.title,
            doc=result.doc or purpose(self.function),
            meta={**options, **result.meta},
        )


ANALYZERS: Registry[Analyzer] = Registry("analyzer", "tracelens.analysis", "tracelens.findings")
SHARED: Registry[Shared] = Registry(
    "shared input", "tracelens.analysis", "tracelens.what_if", "tracelens.findings"
)


def share(
    name: str, *, part: Callable[..., Any], shared: Sequence[str] = ()
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Register a function (parts, *, options) -> T whose value analyzers share.

    Args:
        name: for the `shared` of analyzers.
        part: (trace, *, options) -> what the function needs of one rank.
        shared: other shared values, which the function takes after the parts.
    """

    def keep(function: Callable[..., T]) -> Callable[..., T]:
        options = dict.fromkeys(_options(function) + _options(part))
        item = Shared(name, function, part, tuple(options), tuple(shared))
        SHARED.add(name, item, function.__module__)
        return function

    return keep


def analyzer(
    name: str,
    *,
    title: str = "",
    order: int = 1000,
    part: Callable[..., Any] | None = None,
    slow: bool = False,
    needs: Sequence[str] = (),
    shared: Sequence[str] = (),
    tables: Mapping[str, Schema] = EMPTY,
) -> Callable[[Callable[..., Result]], Analyzer]:
    """Register a function (run, *, options) -> Result as an analyzer.

    The first paragraph of its docstring is the text of its section in a report.

    Args:
        name: as in `tracelens analyze NAME`.
        title: heading of its section.
        order: position in a report.
        part: for an analyzer that compares ranks: (trace, *, options) -> part; the function then takes the
            list of parts instead of a run.
        slow: whether it takes as long as all others together.
        needs: analyzers whose results, by name, the function takes as its last argument before the options.
        shared: what it shares with other analyzers, see `share`; the function takes each as an argument,
            after the parts.
        tables: the schemas of its tables by name, for the documentation; a result may lack some of them.
    """

    def keep(function: Callable[..., Result]) -> Analyzer:
        doc = (inspect.getdoc(function) or name).splitlines()[0]
        options = tuple(dict.fromkeys(_options(function) + (_options(part) if part else ())))
        heading = title or name.capitalize()
        item = Analyzer(
            name, heading, doc, order, function, part, options, slow, tuple(needs), tuple(shared), tables
        )
        ANALYZERS.add(name, item, function.__module__)
        return item

    return keep


def _options(function: Callable[..., Any]) -> tuple[str, ...]:
    """Names of the arguments that are options: those with a default."""
    parameters = inspect.signature(function).parameters.values()
    return tuple(parameter.name for parameter in parameters if parameter.default is not parameter.empty)


def _selected(options: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if key in names and value is not None}


def _on_rank(part: str, trace: Trace) -> str:
    return f"{part}, rank {trace.meta.rank}" if trace.meta.rank >= 0 else part


def in_order() -> list[Analyzer]:
    """All analyzers in the order of a report."""
    return sorted((item for _, item in ANALYZERS.items()), key=lambda item: (item.order, item.name))


def with_required(requested: Sequence[Analyzer]) -> list[Analyzer | Shared]:
    """Analyzers and what they require, in an order in which each comes after what it requires."""
    ordered: dict[str, Analyzer | Shared] = {}

    def add(item: Analyzer | Shared) -> None:
        for required in item.requires:
            add(required)
        ordered[item.name] = item

    for item in requested:
        add(item)
    return list(ordered.values())

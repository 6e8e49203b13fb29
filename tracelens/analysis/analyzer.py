"""Questions about a run: one module an analyzer, one public function, one `Result`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tracelens.guard import Failure, guard
from tracelens.registry import Registry, purpose
from tracelens.table import Result, Skip, join, result
from tracelens.trace import Run

if TYPE_CHECKING:
    from tracelens.trace import Trace


EMPTY: Mapping[str, Result] = MappingProxyType({})


@dataclass(frozen=True)
class Analyzer:
    """A registered analyzer.

    Most look at one rank after the other: they are functions of a run whose tables are the tables of its
    ranks, one below the other. Those that compare ranks have a `part`, which makes of one trace the little
    that the comparison needs, and a function of all parts. Either way the work on one rank can be done
    where its trace is, and only tables travel. Those with `needs` also read the results of other analyzers.

    Attributes:
        name: as in `tracelens analyze NAME`.
        title: heading of its section in a report.
        doc: the question it answers, one line.
        order: position in a report; ties go by name.
        function: (run, **options) -> Result, or (parts, **options) -> Result where there is a `part`, or
            (parts, results, **options) -> Result where there are `needs`.
        part: (trace, **options) -> what the function needs of this rank; None for most.
        options: names of the options that it takes.
        slow: it takes as long as all others together, and is worth a process of its own.
        needs: names of the analyzers whose results it reads; only for one with a `part`.
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

    def __call__(self, run: Run, results: Mapping[str, Result] = EMPTY, **options: Any) -> Result:
        """Analyze `run`; options that this analyzer does not have are ignored.

        Args:
            run: the ranks.
            results: of other analyzers about the same run, by name; what is needed and not there is made.
            options: of this analyzer, and of those that it needs.
        """
        if self.part is None and len(run.traces) == 1:
            return self.combine([self.part_of(run.traces[0], **options)], **options)
        if self.part is None:
            combined = guard(self._part, self.function, run, **self._own_options(options))
            if not isinstance(combined, Failure):
                return self._named(combined, self._own_options(options))
        parts = [self.part_of(trace, **options) for trace in run.traces]
        missing = [name for name in self.needs if name not in results]
        made = {name: ANALYZERS.get(name)(run, results, **options) for name in missing}
        return self.combine(parts, {**results, **made}, **options)

    def part_of(self, trace: Trace, **options: Any) -> Any:
        """What `combine` needs of one rank, or its Failure; it can be pickled, and holds no trace."""
        part = f"{self._part}, rank {trace.meta.rank}" if trace.meta.rank >= 0 else self._part
        if self.part is None:
            return guard(part, self.function, Run((trace,)), **self._own_options(options))
        return guard(part, self.part, trace, **_selected(options, self.part))

    def combine(self, parts: Sequence[Any], results: Mapping[str, Result] = EMPTY, **options: Any) -> Result:
        """The result for a run, from the parts of its ranks in order of rank and the results it needs.

        Where a rank failed, tables of single ranks have those of the others; a comparison is not made.
        """
        own_options = self._own_options(options)
        failures = [part for part in parts if isinstance(part, Failure)]
        if self.part is None:
            results_of_ranks = [part for part in parts if not isinstance(part, Failure)]
            joined = guard(self._part, join, results_of_ranks) if results_of_ranks else result({})
        elif failures:
            joined = result({})
        else:
            inputs = (parts, {name: results[name] for name in self.needs}) if self.needs else (parts,)
            joined = guard(self._part, self.function, *inputs, **_selected(options, self.function))
        if isinstance(joined, Failure):
            failures, joined = [*failures, joined], result({})
        skips = (Skip(self.title, failure) for failure in failures)
        return self._named(replace(joined, skips=(*joined.skips, *skips)), own_options)

    @property
    def _part(self) -> str:
        return f"analyzer {self.name}"

    def _own_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in options.items() if key in self.options and value is not None}

    def _named(self, result: Result, options: Mapping[str, Any]) -> Result:
        return replace(
            result,
            analyzer=self.name,
            title=result.title or self.title,
            doc=result.doc or purpose(self.function),
            meta={**options, **result.meta},
        )


ANALYZERS: Registry[Analyzer] = Registry("analyzer", "tracelens.analysis", "tracelens.findings")


def analyzer(
    name: str,
    *,
    title: str = "",
    order: int = 1000,
    part: Callable[..., Any] | None = None,
    slow: bool = False,
    needs: Sequence[str] = (),
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
        needs: analyzers whose results, by name, the function takes as its second argument.
    """

    def keep(function: Callable[..., Result]) -> Analyzer:
        doc = (inspect.getdoc(function) or name).splitlines()[0]
        options = dict.fromkeys(_options(function)[bool(needs) :] + (_options(part) if part else ()))
        item = Analyzer(
            name, title or name.capitalize(), doc, order, function, part, tuple(options), slow, tuple(needs)
        )
        ANALYZERS.add(name, item, function.__module__)
        return item

    return keep


def _options(function: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)[1:]


def _selected(options: Mapping[str, Any], function: Callable[..., Any]) -> dict[str, Any]:
    names = _options(function)
    return {key: value for key, value in options.items() if key in names and value is not None}


def in_order() -> list[Analyzer]:
    """All analyzers in the order of a report."""
    return sorted((item for _, item in ANALYZERS.items()), key=lambda item: (item.order, item.name))


def with_needed(wanted: Sequence[Analyzer]) -> list[Analyzer]:
    """Analyzers and those that they need, in an order in which each comes after what it needs."""
    ordered: dict[str, Analyzer] = {}

    def add(analyzer_: Analyzer) -> None:
        for name in analyzer_.needs:
            add(ANALYZERS.get(name))
        ordered[analyzer_.name] = analyzer_

    for analyzer_ in wanted:
        add(analyzer_)
    return list(ordered.values())

"""Questions about a run: analyzers, what they share, and the options that they take."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from msgspec import Struct, field
from msgspec.structs import replace

from tracelens.errors import WrongOption, suggestion
from tracelens.guard import Failure, guard
from tracelens.registry import Registry, purpose
from tracelens.table import Result, Schema, Skip, join, result
from tracelens.trace import Run

if TYPE_CHECKING:
    from tracelens.trace import Trace

T = TypeVar("T")
EMPTY: Mapping[str, Any] = MappingProxyType({})


MANY_RANKS = 32
"""From here on memory counts more than the time that it takes to save some."""


class Shared(Struct, frozen=True):
    """What several analyzers need of all ranks together: made once a run, shown in no report."""

    name: str  # as in the `shared` of an analyzer
    function: Callable[..., Any]  # (parts, **options) -> what is shared
    part: Callable[..., Any]  # (trace, **options) -> what the function needs of this rank
    options: tuple[str, ...]  # names of the options that it takes
    shared: tuple[str, ...] = ()  # names of what it needs itself that analyzers share
    slow: bool = False  # as of an analyzer

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


class Analyzer(Struct, frozen=True):
    """A registered analyzer.

    Most look at one rank after the other: they are functions of a run whose tables are the tables of its
    ranks, one below the other. Those that compare ranks have a `part`, which makes of one trace the little
    that the comparison needs, and a function of all parts. Either way the work on one rank can be done
    where its trace is, and only tables travel. What several comparisons need, such as clocks, is `shared`;
    those with `needs` also read the results of other analyzers.
    """

    name: str  # as in `tracelens analyze NAME`
    title: str  # heading of its section in a report
    doc: str  # the question it answers, one line
    order: int  # position in a report; ties go by name
    # (run, **options) -> Result; for one that compares ranks ([parts], [*shared], [results], **options) ->
    # Result, with those that it has
    function: Callable[..., Result]
    # (trace, **options) -> what the function needs of this rank; None for most
    part: Callable[..., Any] | None
    options: tuple[str, ...]  # names of the options that it takes
    slow: bool = False  # its part is made in a process of its own, beside those of all others
    needs: tuple[str, ...] = ()  # names of the analyzers whose results it reads
    shared: tuple[str, ...] = ()  # names of what it shares with other analyzers
    tables: Mapping[str, Schema] = field(default_factory=dict)
    sums_steps: bool = False  # its times are of all steps together, unless one is chosen

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


ANALYZERS: Registry[Analyzer] = Registry(
    "analyzer",
    "tracelens.analysis",
    "tracelens.findings",
    homes={
        ".comm.collectives": "collectives",
        ".comm.overlap": "overlap",
        ".completeness.completeness": "completeness",
        ".host.idle": "idle",
        ".host.launches": "launches",
        ".moe.moe": "moe",
        ".overview.breakdown": "breakdown, kernels, ops",
        ".overview.scopes": "scopes",
        ".overview.steps": "steps",
        ".overview.timeline": "input, timeline",
        ".pipeline.pipeline": "pipeline",
        ".roofline.roofline": "roofline",
        ".serving.serving": "serving",
        ".step_timeline.step_timeline": "step_timeline",
        ".stragglers.stragglers": "stragglers",
        "..findings.findings": "findings",
    },
)
SHARED: Registry[Shared] = Registry(
    "shared input",
    "tracelens.analysis",
    "tracelens.what_if",
    "tracelens.findings",
    homes={".comm.aligned": "aligned run", "..what_if.projection": "graph parts, projector, replays"},
)


class Option(Struct, frozen=True):
    """What is known of one option."""

    values: tuple[Any, ...]  # the only ones that it takes, () where that is not said
    kinds: tuple[type, ...]  # types of its values, () where that is not said
    default: Any  # its value where nothing is given

    def wrong(self, value: Any) -> str:
        """What it must be instead of `value`, "" where that is fine."""
        if self.values:
            if any(value == allowed and type(value) is type(allowed) for allowed in self.values):
                return ""
            known = [text for text in self.values if isinstance(text, str)]
            hint = suggestion(value, known) if isinstance(value, str) else ""
            must = f"must be {_either(list(map(repr, self.values)))}, not {value!r}"
            return f"{must}; {hint}" if hint else must
        if not self.kinds or isinstance(value, self.kinds):
            return ""
        return f"must be {_either([kind.__name__ for kind in self.kinds])}, not {value!r}"


def share(
    name: str, *, part: Callable[..., Any], shared: Sequence[str] = (), slow: bool = False
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Register a function (parts, *, options) -> T whose value analyzers share.

    Args:
        name: for the `shared` of analyzers.
        part: (trace, *, options) -> what the function needs of one rank.
        shared: other shared values, which the function takes after the parts.
        slow: as for `analyzer`.
    """

    def keep(function: Callable[..., T]) -> Callable[..., T]:
        options = dict.fromkeys(_options(function) + _options(part))
        item = Shared(name, function, part, tuple(options), tuple(shared), slow)
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
    sums_steps: bool = False,
) -> Callable[[Callable[..., Result]], Analyzer]:
    """Register a function (run, *, options) -> Result as an analyzer.

    The first paragraph of its docstring is the text of its section in a report.

    Args:
        name: as in `tracelens analyze NAME`.
        title: heading of its section.
        order: position in a report.
        part: for an analyzer that compares ranks: (trace, *, options) -> part; the function then takes the
            list of parts instead of a run.
        slow: whether its part is one of those that together take as long as all others.
        needs: analyzers whose results, by name, the function takes as its last argument before the options.
        shared: what it shares with other analyzers, see `share`; the function takes each as an argument,
            after the parts.
        tables: the schemas of its tables by name, for the documentation; a result may lack some of them.
        sums_steps: whether its times are of all steps together, which its heading then says.
    """

    def keep(function: Callable[..., Result]) -> Analyzer:
        doc = (inspect.getdoc(function) or name).splitlines()[0]
        options = tuple(dict.fromkeys(_options(function) + (_options(part) if part else ())))
        heading = title or name.capitalize()
        item = Analyzer(
            name=name,
            title=heading,
            doc=doc,
            order=order,
            function=function,
            part=part,
            options=options,
            slow=slow,
            needs=tuple(needs),
            shared=tuple(shared),
            tables=tables,
            sums_steps=sums_steps,
        )
        ANALYZERS.add(name, item, function.__module__)
        return item

    return keep


def _options(function: Callable[..., Any]) -> tuple[str, ...]:
    """Names of the arguments that are options: those with a default."""
    parameters = _parameters(function).values()
    return tuple(parameter.name for parameter in parameters if parameter.default is not parameter.empty)


@cache  # every analysis asks for those of all analyzers
def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(function).parameters


def _selected(options: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if key in names and value is not None}


def _on_rank(part: str, trace: Trace) -> str:
    return f"{part}, rank {trace.meta.rank}" if trace.meta.rank >= 0 else part


def in_order() -> list[Analyzer]:
    """All analyzers in the order of a report."""
    return sorted((item for _, item in ANALYZERS.items()), key=lambda item: (item.order, item.name))


def with_required(requested: Sequence[Analyzer | Shared]) -> list[Analyzer | Shared]:
    """Analyzers and what they require, in an order in which each comes after what it requires."""
    ordered: dict[str, Analyzer | Shared] = {}

    def add(item: Analyzer | Shared) -> None:
        for required in item.requires:
            add(required)
        ordered[item.name] = item

    for item in requested:
        add(item)
    return list(ordered.values())


class Combining:
    """The results of analyzers, made of the parts of all ranks one after the other.

    What they share is let go once the last of them has it: of hundreds of ranks it is most of the memory.

    Args:
        requested: in the order of the results.
        parts_of: the parts of what has this name, asked for once.
        options: of the analyzers.
    """

    def __init__(
        self, requested: Sequence[Analyzer], parts_of: Callable[[str], Sequence[Any]], **options: Any
    ) -> None:
        self._requested, self._parts_of, self._options = requested, parts_of, options
        self.missing = with_required(requested)  # what is still to be made, in order
        self._shared = {item.name for item in self.missing if isinstance(item, Shared)}
        self._made: dict[str, Any] = {}

    @property
    def results(self) -> list[Result]:
        """Those that are there, in the order in which they were requested."""
        return [self._made[item.name] for item in self._requested if item.name in self._made]

    def combine(self, items: Sequence[Analyzer | Shared]) -> dict[str, Result]:
        """Make some of what is missing, whose requirements are there or before them; returns the results."""
        results = {}
        for item in items:
            parts = self._parts_of(item.name)
            made = item.combine(parts, self._made, **self._options)
            if isinstance(item, Analyzer):
                results[item.name] = made
            is_large = len(parts) >= MANY_RANKS
            del parts
            if self.take({item.name: made}) and is_large:
                gc.collect()  # a graph and its replays know each other
        return results

    def take(self, made: Mapping[str, Any]) -> bool:
        """Take what was made, here or in another process; returns whether something shared was let go."""
        self._made |= made
        self.missing = [item for item in self.missing if item.name not in made]
        done = self._shared.intersection(self._made).difference(*(item.shared for item in self.missing))
        for name in done:
            del self._made[name]
        return bool(done)

    def ready(self, items: Sequence[Analyzer | Shared]) -> list[Analyzer | Shared]:
        """Those of some that are missing and wait for no others, in order."""
        waiting = {item.name for item in self.missing}
        ready = []
        for item in items:
            if item.name in waiting and waiting.isdisjoint(required.name for required in item.requires):
                ready.append(item)
                waiting.discard(item.name)
        return ready

    def replaying(self) -> list[Analyzer | Shared]:
        """What is missing to replay the run, which nothing else needs, and those that do."""
        late: list[Analyzer | Shared] = []
        for item in reversed(self.missing):
            users = [user for user in self.missing if item in user.requires]
            if _replays(item) or (users and isinstance(item, Shared) and all(user in late for user in users)):
                late.insert(0, item)
        return late


def _replays(item: Analyzer | Shared) -> bool:
    """Whether it replays the run, or requires what does: of what is shared the slow."""
    return any((isinstance(one, Shared) and one.slow) or _replays(one) for one in item.requires)


def check_options(chosen: Sequence[Analyzer], options: Mapping[str, Any]) -> None:
    """Refuse options that no analyzer has, and values that one of them does not take.

    An option with its default value asks for nothing, so that one may be given to analyzers that lack it.

    Args:
        chosen: analyzers; options of those that they need count as theirs.
        options: of all of them.

    Raises:
        WrongOption: one line that names the analyzer, its options or the values, and the nearest right word.
    """
    known = _options_of_all(with_required(chosen))
    for name, value in options.items():
        if name not in known:
            others = _options_of_all(in_order())
            if name in others and (
                value is None or any(value == option.default for _, option in others[name])
            ):
                continue
            raise WrongOption(_no_option(chosen, name, sorted({*known, "step"})))
        if value is None:
            continue
        for analyzer, option in known[name]:
            if why := option.wrong(value):
                raise WrongOption(f"analyzer {analyzer!r}: {name} {why}")


def option_names(chosen: Sequence[Analyzer]) -> set[str]:
    """The options of these analyzers and of those that they need."""
    return {name for item in with_required(chosen) for name in item.options}


def _no_option(chosen: Sequence[Analyzer], name: str, known: Sequence[str]) -> str:
    hint = suggestion(name, known)
    hint = f"; {hint}" if hint else ""
    if len(chosen) == 1:
        return f"analyzer {chosen[0].name!r} has no option {name!r}{hint} (it has: {', '.join(known)})"
    return f"no analyzer of this report has an option {name!r}{hint} (available: {', '.join(known)})"


def _options_of_all(chosen: Sequence[Analyzer | Shared]) -> dict[str, list[tuple[str, Option]]]:
    """By name the options of these analyzers, each with the analyzer that has it."""
    options: dict[str, list[tuple[str, Option]]] = {}
    for item in chosen:
        functions = [item.function, *([item.part] if item.part else [])]
        for name in item.options:
            for owner in functions:
                if name in _parameters(owner):
                    options.setdefault(name, []).append((item.name, _option(owner, name)))
                    break
            else:  # a wrapper that takes any
                options.setdefault(name, []).append((item.name, Option((), (), None)))
    return options


@cache
def _option(function: Callable[..., Any], name: str) -> Option:
    default = _parameters(function)[name].default
    hint = getattr(function, "__annotations__", {}).get(name)
    holder = SimpleNamespace(__annotations__={name: hint} if hint is not None else {})
    try:
        hint = get_type_hints(holder, globalns=getattr(function, "__globals__", {})).get(name)
    except (NameError, TypeError):  # a name that is imported for type checkers alone
        return Option((), (), default)
    return Option(*_allowed(hint), default)


def _allowed(hint: Any) -> tuple[tuple[Any, ...], tuple[type, ...]]:
    """The values and the types that a type hint allows."""
    if get_origin(hint) is Literal:
        return get_args(hint), ()
    if hint is float:
        return (), (float, int)
    if hint in (str, int, bool):
        return (), (hint,)
    parts = [part for part in get_args(hint) if part is not type(None)]
    if len(parts) < len(get_args(hint)) and len(parts) == 1:  # "... | None"
        return _allowed(parts[0])
    return (), ()


def _either(words: Sequence[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last

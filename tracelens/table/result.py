"""What an analysis returns: tables, and what could not be computed; and what a report says before them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from tracelens.errors import SchemaError
from tracelens.guard import Failure
from tracelens.registry import Registry
from tracelens.table.schema import Schema, Table, shortened
from tracelens.units import Unit

if TYPE_CHECKING:
    import pandas as pd

VIEWS: Registry[Callable[[Any], object]] = Registry("view", "tracelens.rendering.formats")
"""How results and reports show themselves in notebooks; rendering is not imported before it is needed."""


class _Frames(Mapping[str, "pd.DataFrame"]):
    """Tables by name as DataFrames, made when first asked for."""

    def __init__(self, data: Mapping[str, Table]) -> None:
        self._data = data

    def __getitem__(self, name: str) -> pd.DataFrame:
        return self._data[name].frame

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)


class Skip(Struct, frozen=True):
    """Something that could not be computed, and why: what is missing and how to record it next time."""

    subject: str
    reason: str


class Result(Struct, frozen=True):
    """What one analyzer found."""

    analyzer: str  # its registered name
    title: str  # heading of its section
    # Name to Table; the first one is the headline. A table that cannot be computed is absent here and present
    # in `skips`.
    data: Mapping[str, Table]
    doc: str = ""  # what the section answers, one or two sentences
    skips: tuple[Skip, ...] = ()  # what could not be computed
    # scalars that belong to the result as a whole (options used, totals)
    meta: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""  # what makes it on the command line, "" for `tracelens analyze`

    def __repr__(self) -> str:
        rows = [f"{name} {len(table):,}" for name, table in self.data.items()]
        return f"Result({self.analyzer!r}: {_tables(rows)}; {_skips(len(self.skips))})"

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Of the skips those that are due to a bug."""
        return tuple(skip.reason for skip in self.skips if isinstance(skip.reason, Failure))

    @property
    def tables(self) -> Mapping[str, pd.DataFrame]:
        """Name to DataFrame of every table."""
        return _Frames(self.data)

    @property
    def exported(self) -> Mapping[str, Table]:
        """The tables that every format may hold; those of pictures only the page with the picture has."""
        return {name: table for name, table in self.data.items() if not table.schema.drawn}

    @property
    def schemas(self) -> Mapping[str, Schema]:
        """Name to schema of every table."""
        return {name: table.schema for name, table in self.data.items()}

    def __getitem__(self, table: str) -> pd.DataFrame:
        """The table of that name as a DataFrame.

        Raises:
            SchemaError: no such table; the message carries the reason when it was skipped.
        """
        if table in self.data:
            return self.data[table].frame
        why = "; ".join(f"{skip.subject}: {skip.reason}" for skip in self.skips)
        raise SchemaError(f"{self.analyzer}: no table {table!r} (has: {', '.join(self.data)}) {why}")

    def _repr_html_(self) -> str:
        """The result as it shows itself where HTML can be shown."""
        return str(VIEWS.get("html")(self))

    def _ipython_display_(self) -> None:
        """The result as it shows itself in Jupyter."""
        VIEWS.get("notebook")(self)


class Report(Struct, frozen=True):
    """Several results about the same run, in reading order: what every renderer takes."""

    results: tuple[Result, ...]  # one per analyzer
    title: str = "tracelens report"  # heading of the whole
    # tracelens version, inputs, ranks, device names, options; JSON-able values only
    meta: Mapping[str, Any] = field(default_factory=dict)
    summary: Summary | None = None  # the first screen; None where nothing sums up
    # what formats made of results while others were being made: by format, then by analyzer
    prepared: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __repr__(self) -> str:
        names = shortened([result.analyzer for result in self.results])
        skips = sum(len(result.skips) for result in self.results)
        return f"Report({self.title!r}: {len(self.results)} results: {names}; {_skips(skips)})"

    @property
    def failures(self) -> tuple[Failure, ...]:
        """What is missing because of a bug."""
        verdict = [self.summary.verdict] if self.summary else []
        of_summary = (text for text in verdict if isinstance(text, Failure))
        return (*of_summary, *(failure for result in self.results for failure in result.failures))

    def __getitem__(self, analyzer: str) -> Result:
        """The result of that analyzer; raises SchemaError when it is not part of the report."""
        for result in self.results:
            if result.analyzer == analyzer:
                return result
        raise SchemaError(f"no result of {analyzer!r} (has: {', '.join(r.analyzer for r in self.results)})")

    def _ipython_display_(self) -> None:
        """The report as it shows itself in Jupyter."""
        VIEWS.get("notebook report")(self)


class Tile(Struct, frozen=True):
    """One headline number."""

    name: str  # for programs: "step_time"
    label: str  # for people: "Step time"
    value: float | None  # in `unit`; None where it is not known
    unit: Unit  # of the value
    low: float | None = None  # over ranks or steps, in `unit`; None where there is no range
    high: float | None = None  # over ranks or steps, in `unit`; None where there is no range
    note: str = ""  # what it is of, what the range is, or why there is no value
    section: str = ""  # analyzer whose section tells more, "" for none
    text: str = ""  # stands for the value where it is no number: "complete"


class Summary(Struct, frozen=True):
    """The first screen of a report."""

    # one or two sentences: what was measured, where the time goes, what to do; a Failure where a bug left
    # nothing to say
    verdict: str
    tiles: tuple[Tile, ...] = ()  # in the order shown


def _tables(rows: Sequence[str]) -> str:
    return f"rows of tables: {shortened(rows)}" if rows else "no tables"


def _skips(count: int) -> str:
    return f"{count:,} {'skip' if count == 1 else 'skips'}"


def result(tables: Mapping[str, Table], skips: Sequence[Skip] = (), **meta: Any) -> Result:
    """A Result without name and text, which the registration adds."""
    return Result("", "", tables, skips=tuple(skips), meta=meta)


def join(results: Sequence[Result]) -> Result:
    """One result from those of single ranks: tables one below the other, what has no rank once."""
    by_name: dict[str, list[Table]] = {}
    for rank_result in results:
        for name, table in rank_result.data.items():
            by_name.setdefault(name, []).append(table)
    tables = {
        name: same[0].schema.concat([table.columns for table in same])
        if "rank" in same[0].schema.names
        else same[0]
        for name, same in by_name.items()
    }
    skips = dict.fromkeys(skip for rank_result in results for skip in rank_result.skips)
    return Result("", "", tables, skips=tuple(skips), meta=results[0].meta)

"""Tables: columns under a declared schema, text columns by dictionary, and the operations on them.

Whatever a schema declares is what every output format shows; none of them knows an analyzer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tracelens.arrays import Bool, Int, distinct, first_rows, marked
from tracelens.errors import SchemaError
from tracelens.packing import REDUCERS, one_for_all
from tracelens.table.statistics import codes
from tracelens.units import Unit

if TYPE_CHECKING:
    import pandas as pd

Dtype = Literal["int64", "float64", "bool", "str", "category"]
Kind = Literal["list", "tree", "levels", "entries"]
"""How a table is read:

- list: rows below each other.
- tree: columns `node` and `parent` nest the rows; node numbers are unique on a rank.
- levels: the first column, `level`, names a way to divide the same whole; each is read by itself.
- entries: one row at a time, its sentences below its name, since they have no room beside each other.
"""


class Column(Struct, frozen=True):
    """One column. Absent strings are ''."""

    name: str  # with the unit at its end (`dur_ns`)
    dtype: Dtype  # of its values
    unit: Unit = ""  # Of its values. The reasons for efficiencies that need one begin the column `note`.
    doc: str = ""  # what it means
    prose: bool = False  # sentences, which are shown whole; names are shortened in their middle
    # lines to be copied, such as commands: whole, unbroken, and where possible folded away
    folded: bool = False
    # What stands for an unknown number in the arrays, where one can be unknown. Readers never see it: it is
    # NA in frames, null in JSON, empty in sheets, a dash for people.
    absent: int | None = None
    # Does not add up, such as a mean or the size of one call. A rank that lacks the row has no such number,
    # but may have 0 of its times and counts. Rates and efficiencies are intensive.
    intensive: bool = False

    @property
    def is_text(self) -> bool:
        return self.dtype in ("str", "category")

    @property
    def is_number(self) -> bool:
        return self.dtype in ("int64", "float64")


class Schema(Struct, frozen=True):
    """The declared columns of one table."""

    title: str  # heading shown above the table
    columns: tuple[Column, ...]  # in the order shown
    doc: str = ""  # one or two sentences a reader of the report needs to read the table
    kind: Kind = "list"  # how it is read
    # the table feeds figures and machine formats (JSON, CSV, XLSX) and is too fine to be read; console,
    # Markdown and HTML leave its rows out
    detail: bool = False
    # its first rows say most; console, Markdown and HTML show fewer of them than of other tables
    brief: bool = False
    drawn: bool = False  # the table feeds a picture of the HTML page and is in no other format
    # Of a table with a `rank`, the columns that name what a row is about; rows of several ranks that agree in
    # them can be compared. Empty where every row stands for itself: an event, or a rank. By default the names
    # and other short texts. The rows of a tree are about the same if all rows around them are, too.
    key: tuple[str, ...] | None = None
    leading: str = ""  # the quantity that matters most; by default the first time, else the first amount
    descending: bool = False  # the rows of a rank are in order of it, largest first
    # a rank that lacks a row has nothing of the kind; else nobody measured it there
    absent_is_zero: bool = True

    def __post_init__(self) -> None:
        needed = {"tree": {"node", "parent"}, "levels": {"level"}}.get(self.kind, set())
        if not needed <= set(self.names):
            raise SchemaError(f"table {self.title!r}: a {self.kind} table has {' and '.join(sorted(needed))}")

    def __repr__(self) -> str:
        return f"Schema({self.title!r}: {len(self.columns)} columns: {shortened(self.names)})"

    @property
    def keys(self) -> list[str]:
        """The columns of the key."""
        if self.key is not None:
            return [name for name in self.names if name in self.key]
        return [c.name for c in self.columns if c.is_text and not (c.prose or c.folded)]

    @property
    def names(self) -> list[str]:
        """Column names in declared order."""
        return [column.name for column in self.columns]

    def table(self, data: Mapping[str, Any]) -> Table:
        """Build a table from columns, checked against this schema.

        Args:
            data: column name to array, list or (for text) `Coded`, all of one length; order does not matter.

        Raises:
            SchemaError: a column is missing, undeclared, of another length, cannot take its dtype without
                loss, or has missing values (those are said with a Skip).
        """
        if set(data) != set(self.names):
            wrong = sorted(set(data).symmetric_difference(self.names))
            raise SchemaError(f"table {self.title!r}: columns missing or undeclared: {', '.join(wrong)}")
        table = Table(
            self, {column.name: self._checked(column, data[column.name]) for column in self.columns}
        )
        if len({len(column) for column in table.columns.values()}) > 1:
            lengths = ", ".join(f"{name} {len(column)}" for name, column in table.columns.items())
            raise SchemaError(f"table {self.title!r}: columns differ in length: {lengths}")
        return table

    def from_rows(self, rows: Iterable[Mapping[str, Any] | tuple[Any, ...]]) -> Table:
        """Build a table from rows: mappings by column name, or tuples in the declared order."""
        cells = [row if isinstance(row, tuple) else [row[name] for name in self.names] for row in rows]
        columns = list(zip(*cells, strict=True)) or [()] * len(self.columns)
        return self.table(dict(zip(self.names, map(list, columns), strict=True)))

    def concat(self, parts: Sequence[Mapping[str, Any]]) -> Table:
        """Build a table from column mappings, one a rank, one below the other."""
        if not parts:
            return self.from_rows(())
        return self.table({name: _concat([part[name] for part in parts]) for name in self.names})

    def _checked(self, column: Column, values: Any) -> Any:
        if column.is_text:
            texts = values.values if isinstance(values, Coded) else values
            if not all(issubclass(kind, str) for kind in set(map(type, texts))):
                raise SchemaError(f"table {self.title!r}: {column.name} has values that are not text")
            return values if isinstance(values, Coded | list) else list(values)
        array = np.asarray(values)
        if column.dtype == "int64" and array.size and not np.can_cast(array.dtype, np.int64):
            kind = "floats" if array.dtype.kind == "f" else str(array.dtype)
            raise SchemaError(f"table {self.title!r}: {column.name} is declared int64 but holds {kind}")
        if array.dtype.kind == "f" and np.isnan(array).any():
            raise SchemaError(f"table {self.title!r}: {column.name} has missing values; say it with a Skip")
        return array.astype(column.dtype, copy=False)


class Pivot(NamedTuple):
    """Numbers by the values of two columns: `values[i, j]` belongs to `rows[i]` and `columns[j]`."""

    rows: list[Any]
    columns: list[Any]
    values: NDArray[Any]

    def by_row(self) -> dict[Any, NDArray[Any]]:
        return dict(zip(self.rows, self.values, strict=True))


class Table(Struct, frozen=True, dict=True):
    """Columns under a schema; a DataFrame when somebody asks for one.

    Importing pandas takes longer than most analyses, and writing a report does not need it.
    """

    schema: Schema  # what the columns are
    columns: Mapping[str, Any]  # name to numpy array, to list of texts, or to Coded

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def __repr__(self) -> str:
        return f"Table({self.schema.title!r}: {len(self):,} rows, {len(self.schema.columns)} columns)"

    def array(self, name: str) -> NDArray[Any]:
        """A number or bool column as numpy array."""
        values: NDArray[Any] = self.columns[name]
        return values

    def coded(self, name: str) -> Coded:
        """A text column by dictionary, whichever way it is held."""
        values = self.columns[name]
        return values if isinstance(values, Coded) else Coded.of(values)

    def texts(self, name: str, rows: Rows = slice(None)) -> list[str]:
        """A text column as list, of these rows only."""
        values = self.columns[name]
        return values.texts(rows) if isinstance(values, Coded) else list(_taken(values, rows))

    def values(self, name: str, rows: Rows = slice(None)) -> list[Any]:
        """Any column as plain Python values, of these rows only."""
        values = self.columns[name]
        return values[rows].tolist() if isinstance(values, np.ndarray) else self.texts(name, rows)

    def unknown(self, name: str, rows: Rows = slice(None)) -> Bool:
        """Which numbers of a column are not known."""
        absent = next(column.absent for column in self.schema.columns if column.name == name)
        values = self.array(name)[rows]
        return np.zeros(len(values), dtype=bool) if absent is None else values == absent

    def known(self, name: str) -> NDArray[Any]:
        """The numbers of a column that are known."""
        unknown = self.unknown(name)
        return self.array(name)[~unknown] if unknown.any() else self.array(name)

    def cells(self, name: str, rows: Rows = slice(None)) -> list[Any]:
        """A column as readers are given it: as `values`, and None where a number is not known."""
        values = self.values(name, rows)
        if isinstance(self.columns[name], np.ndarray):
            for row in np.flatnonzero(self.unknown(name, rows)).tolist():
                values[row] = None
        return values

    def take(self, rows: Rows) -> Table:
        """The table of these rows, or of those that a mask selects."""
        return Table(self.schema, {name: _taken(column, rows) for name, column in self.columns.items()})

    def with_schema(self, schema: Schema) -> Table:
        """The table with the columns of another schema, which this one has all of."""
        return Table(schema, {name: self.columns[name] for name in schema.names})

    def group(self, *names: str) -> tuple[Int, list[list[Any]]]:
        """Rows that agree in these columns.

        Returns:
            (group of each row, [value of each column in each group]); groups are in order of the columns,
            texts in that of their dictionary.
        """
        texts = {name: self.coded(name) for name in names if not isinstance(self.columns[name], np.ndarray)}
        keys = [texts[name].codes if name in texts else self.array(name) for name in names]
        group, of_groups = codes(*(key.astype(np.int64, copy=False) for key in keys))
        return group, [
            Coded(values, texts[name].values).texts() if name in texts else values.tolist()
            for name, values in zip(names, of_groups, strict=True)
        ]

    def pivot(
        self, rows: str, columns: str | tuple[str, ...], value: str, among: Sequence[Any] | None = None
    ) -> Pivot:
        """Sums of a number column by the values of two others; 0 where no row has both.

        Args:
            rows: its values, in order of appearance, are the rows of the result.
            columns: its values are the columns; of several, tuples of theirs.
            value: what is summed.
            among: the columns of the result, in this order; rows with others do not count.
        """
        keys = (
            self.values(columns)
            if isinstance(columns, str)
            else list(zip(*map(self.values, columns), strict=True))
        )
        row, row_keys = _numbered(self.values(rows))
        column, column_keys = _numbered(keys, among)
        matrix = np.zeros((len(row_keys), len(column_keys)), self.array(value).dtype)
        known = column >= 0
        np.add.at(matrix, (row[known], column[known]), self.array(value)[known])
        return Pivot(row_keys, column_keys, matrix)

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The table as a DataFrame with the declared dtypes; texts declared "category" are categoricals.

        Numbers that can be unknown have the nullable type of theirs, Int64 or Float64, and NA.
        """
        import pandas as pd

        def array(column: Column) -> Any:  # a Series for each column would take longer than all the rest
            values = self.columns[column.name]
            if column.dtype == "str":
                return pd.array(self.texts(column.name), dtype="str")
            if isinstance(values, Coded):
                categories = pd.Index(list(values.values), dtype=object)
                return pd.Categorical.from_codes(values.codes, categories=categories, validate=False)
            if column.dtype == "category":
                return pd.Categorical(values)
            if column.absent is not None:
                unknown = self.unknown(column.name)
                kind = pd.arrays.IntegerArray if column.dtype == "int64" else pd.arrays.FloatingArray
                return kind(np.where(unknown, 0, values), unknown)
            return values

        return pd.DataFrame({column.name: array(column) for column in self.schema.columns}, copy=False)


Rows = slice | Sequence[int] | NDArray[Any]
"""Rows of a table: a slice, row numbers, or a mask over all of them."""


class Coded(NamedTuple):
    """A text column by dictionary: `values[codes[i]]` is the text of row i. `values` are distinct."""

    codes: NDArray[np.integer[Any]]
    values: Sequence[str]

    def __len__(self) -> int:
        return len(self.codes)

    @classmethod
    def of(cls, texts: Sequence[str]) -> Coded:
        """The dictionary of a list of texts, in order of their first rows."""
        return cls.merged(np.arange(len(texts)), texts)

    @classmethod
    def merged(cls, codes: NDArray[Any], values: Sequence[str]) -> Coded:
        """A column whose dictionary may hold a text twice: equal texts get one code."""
        texts = list(dict.fromkeys(values))
        if len(texts) < len(values):
            code_of = {text: code for code, text in enumerate(texts)}
            codes = np.fromiter(map(code_of.__getitem__, values), np.int32, len(values)).take(codes)
        return cls(codes, texts)

    @classmethod
    def used(cls, codes: NDArray[Any], values: Sequence[str]) -> Coded:
        """A column that picks from a long list of texts; only the picked ones travel with the table."""
        picked_codes, picked = distinct(codes, len(values))
        return cls.merged(picked.astype(np.int32), [values[code] for code in picked_codes.tolist()])

    @classmethod
    def picked(cls, codes: NDArray[Any], values: Sequence[str]) -> Coded:
        """`of` the texts with these codes."""
        used, code = distinct(codes, len(values))
        order = np.argsort(first_rows(code, len(used)))
        place = np.argsort(order).astype(np.int32)
        return cls.merged(place[code], [values[code] for code in used[order].tolist()])

    @classmethod
    def concat(cls, columns: Sequence[Coded]) -> Coded:
        """Columns one below the other under one dictionary."""
        sizes = [len(column.values) for column in columns]
        offsets = np.cumsum(sizes) - sizes
        codes = [
            column.codes.astype(np.int32) + np.int32(offset)
            for column, offset in zip(columns, offsets, strict=True)
        ]
        return cls.merged(np.concatenate(codes), [text for column in columns for text in column.values])

    def take(self, rows: Rows) -> Coded:
        return Coded(self.codes[rows], self.values)

    def texts(self, rows: Rows = slice(None)) -> list[str]:
        return [self.values[code] for code in self.codes[rows].tolist()]

    def mask(self, holds: Callable[[str], object]) -> Bool:
        """The rows whose text `holds` is true of; each text is looked at once."""
        return marked(self.codes, np.array([bool(holds(value)) for value in self.values], dtype=bool))

    def equals(self, text: str) -> Bool:
        return self.mask(lambda value: value == text)


def _packed(column: Coded) -> tuple[Any, ...]:
    return _with_known_texts, (column.codes.astype(np.int32, copy=False), column.values)


def _with_known_texts(codes: Int, values: Sequence[str]) -> Coded:
    """A column that was packed: ranks name the same, and text is most of what they hold."""
    return Coded(codes, [sys.intern(text) if type(text) is str else text for text in values])


REDUCERS[Coded] = _packed
REDUCERS[Schema] = one_for_all


RANK = Column("rank", "int64", doc="rank in the job; 0 for a single trace that names none")
STEP = Column(
    "step",
    "category",
    doc="step that launched it, such as ProfilerStep#2; a label in brackets: launched outside the marks",
)


def shortened(words: Sequence[str], most: int = 6) -> str:
    """Words for one line: the first of them, and how many more there are."""
    more = [f"{len(words) - most:,} more"] if len(words) > most else []
    return ", ".join([*words[:most], *more])


def _concat(columns: Sequence[Any]) -> Any:
    if len(columns) == 1:
        return columns[0]
    if all(isinstance(column, np.ndarray) for column in columns):
        return np.concatenate(columns)
    if any(isinstance(column, Coded) for column in columns):
        return Coded.concat([c if isinstance(c, Coded) else Coded.of(c) for c in columns])
    return [value for column in columns for value in column]


def _taken(column: Any, rows: Rows) -> Any:
    if isinstance(column, Coded):
        return column.take(rows)
    if isinstance(column, np.ndarray) or isinstance(rows, slice):
        return column[rows]
    return [column[row] for row in np.arange(len(column))[rows].tolist()]


def _numbered(keys: Sequence[Any], among: Sequence[Any] | None = None) -> tuple[Int, list[Any]]:
    """(Place of each key among the distinct ones, these in order of appearance); -1 for none of `among`."""
    place_of = {key: number for number, key in enumerate(dict.fromkeys(keys if among is None else among))}
    return np.array([place_of.get(key, -1) for key in keys], dtype=np.int64), list(place_of)

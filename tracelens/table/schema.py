"""What a table is: declared columns with units, and the `Result` that an analyzer returns.

Renderers see nothing but this module, so whatever an analyzer declares here is what every format shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tracelens.errors import SchemaError

if TYPE_CHECKING:
    import pandas as pd

Dtype = Literal["int64", "float64", "bool", "str", "category"]
Unit = Literal["", "ns", "bytes", "fraction", "ratio", "count", "flops", "flops/s", "bytes/s", "flops/byte"]
"""A fraction lies in 0 to 1; a ratio may exceed 1. Both are shown as percentages."""


@dataclass(frozen=True)
class Column:
    """One column. Absent numbers are -1, absent strings are ''.

    Attributes:
        name: with the unit at its end (`dur_ns`).
        dtype: of its values.
        unit: of its values.
        doc: what it means.
        prose: sentences, which are shown whole; names are shortened in their middle.
    """

    name: str
    dtype: Dtype
    unit: Unit = ""
    doc: str = ""
    prose: bool = False


@dataclass(frozen=True)
class Schema:
    """The declared columns of one table.

    Attributes:
        title: heading shown above the table.
        columns: in the order shown.
        doc: one or two sentences a reader of the report needs to read the table.
        detail: the table feeds figures and machine formats (JSON, CSV, XLSX) and is too fine to be read;
            console, Markdown and HTML leave its rows out.
        brief: its first rows say most; console, Markdown and HTML show fewer of them than of other tables.
    """

    title: str
    columns: tuple[Column, ...]
    doc: str = ""
    detail: bool = False
    brief: bool = False

    def __repr__(self) -> str:
        return f"Schema({self.title!r}: {len(self.columns)} columns: {shortened(self.names)})"

    @property
    def names(self) -> list[str]:
        """Column names in declared order."""
        return [column.name for column in self.columns]

    @property
    def entries(self) -> bool:
        """True when people read the rows one by one, each with its sentences below its name.

        Two or more columns of sentences have no room beside each other.
        """
        return sum(column.prose for column in self.columns) > 1

    @property
    def levels(self) -> bool:
        """True when the same whole is cut in several ways, one behind the other.

        People read them one by one. The first column is `level` then, and names the way; a tree has levels
        of another kind.
        """
        return self.names[:1] == ["level"] and "parent" not in self.names

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

    def frame(self, data: Mapping[str, Any]) -> pd.DataFrame:
        return self.table(data).frame

    def _checked(self, column: Column, values: Any) -> Any:
        if column.dtype in ("str", "category"):
            texts = values.values if isinstance(values, Coded) else values
            if not all(isinstance(text, str) for text in texts):
                raise SchemaError(f"table {self.title!r}: {column.name} has values that are no text")
            return values if isinstance(values, Coded | list) else list(values)
        array = np.asarray(values)
        if column.dtype == "int64" and array.size and not np.can_cast(array.dtype, np.int64):
            kind = "floats" if array.dtype.kind == "f" else str(array.dtype)
            raise SchemaError(f"table {self.title!r}: {column.name} is declared int64 but holds {kind}")
        if array.dtype.kind == "f" and np.isnan(array).any():
            raise SchemaError(f"table {self.title!r}: {column.name} has missing values; say it with a Skip")
        return array.astype(column.dtype, copy=False)


def shortened(words: Sequence[str], most: int = 6) -> str:
    """Words for one line: the first of them, and how many more there are."""
    more = [f"{len(words) - most:,} more"] if len(words) > most else []
    return ", ".join([*words[:most], *more])


class Coded(NamedTuple):
    """A text column by dictionary: `values[codes[i]]` is the text of row i. `values` are distinct."""

    codes: NDArray[np.integer[Any]]
    values: Sequence[str]

    def __len__(self) -> int:
        return len(self.codes)


@dataclass(frozen=True)
class Table:
    """Columns under a schema; a DataFrame when somebody asks for one.

    Importing pandas takes longer than most analyses, and writing a report does not need it.

    Attributes:
        schema: what the columns are.
        columns: name to numpy array, to list of texts, or to Coded.
    """

    schema: Schema
    columns: Mapping[str, Any]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def __repr__(self) -> str:
        return f"Table({self.schema.title!r}: {len(self):,} rows, {len(self.schema.columns)} columns)"

    def array(self, name: str) -> NDArray[Any]:
        """A number or bool column as numpy array."""
        values: NDArray[Any] = self.columns[name]
        return values

    def texts(self, name: str, rows: slice | Sequence[int] | NDArray[Any] = slice(None)) -> list[str]:
        """A text column as list, of these rows only."""
        values = self.columns[name]
        if isinstance(values, Coded):
            return [values.values[code] for code in values.codes[rows].tolist()]
        if isinstance(rows, slice):
            return list(values[rows])
        return [values[row] for row in rows]

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The table as a DataFrame with the declared dtypes; texts declared "category" are categoricals."""
        import pandas as pd

        def series(column: Column) -> pd.Series:
            values = self.columns[column.name]
            if column.dtype == "str":
                return pd.Series(self.texts(column.name), dtype="str")
            if isinstance(values, Coded):
                categories = pd.Index(list(values.values), dtype=object)
                return pd.Series(
                    pd.Categorical.from_codes(values.codes, categories=categories, validate=False)
                )
            if column.dtype == "category":
                return pd.Series(pd.Categorical(values))
            return pd.Series(values, copy=False)

        return pd.DataFrame({column.name: series(column) for column in self.schema.columns}, copy=False)

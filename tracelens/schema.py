"""What a table is: declared columns with units, and the `Result` that an analyzer returns.

Renderers see nothing but this module, so whatever an analyzer declares here is what every format shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from tracelens.errors import SchemaError

if TYPE_CHECKING:
    import pandas as pd

Dtype = Literal["int64", "float64", "bool", "str", "category"]
Unit = Literal["", "ns", "bytes", "fraction", "count", "flops", "flops/s", "bytes/s", "flops/byte"]


@dataclass(frozen=True)
class Column:
    """One column: its name, dtype, unit and meaning. Absent integers are -1, absent strings are ''."""

    name: str
    dtype: Dtype
    unit: Unit = ""
    doc: str = ""


@dataclass(frozen=True)
class Schema:
    """The declared columns of one table.

    Attributes:
        title: heading shown above the table.
        columns: in the order shown.
        doc: one or two sentences a reader of the report needs to read the table.
        detail: the table feeds figures and machine formats (JSON, CSV, XLSX) and is too fine to be read;
            console, Markdown and HTML leave its rows out.
    """

    title: str
    columns: tuple[Column, ...]
    doc: str = ""
    detail: bool = False

    @property
    def names(self) -> list[str]:
        """Column names in declared order."""
        return [column.name for column in self.columns]

    def frame(self, data: Mapping[str, Any]) -> pd.DataFrame:
        """Build a table from column arrays, checked against this schema.

        Args:
            data: column name to array or list, all of one length; order does not matter.

        Returns:
            DataFrame with the declared columns in the declared order and dtypes.

        Raises:
            SchemaError: a column is missing, undeclared, or cannot take its dtype without loss.
        """
        import pandas as pd

        if set(data) != set(self.names):
            wrong = sorted(set(data).symmetric_difference(self.names))
            raise SchemaError(f"table {self.title!r}: columns missing or undeclared: {', '.join(wrong)}")
        series = {column.name: _series(data[column.name], column, self.title) for column in self.columns}
        return pd.DataFrame(series, copy=False)

    def check(self, table: pd.DataFrame) -> None:
        """Raise SchemaError unless `table` has exactly the declared columns, dtypes and no missing value."""
        if list(table.columns) != self.names:
            raise SchemaError(f"table {self.title!r}: columns {list(table.columns)} are not {self.names}")
        for column in self.columns:
            dtype = table[column.name].dtype
            if not _is(dtype, column.dtype):
                raise SchemaError(f"table {self.title!r}: {column.name} is {dtype}, not {column.dtype}")
            if table[column.name].isna().any():
                raise SchemaError(f"table {self.title!r}: {column.name} has missing values; say it with a Skip")


def _series(values: Any, column: Column, title: str) -> pd.Series:
    import numpy as np
    import pandas as pd

    dtype: Any = column.dtype
    if dtype == "str":
        return pd.Series(values, dtype="str")
    if dtype == "category":
        return pd.Series(values) if isinstance(values, pd.Categorical) else pd.Series(values, dtype="category")
    array = np.asarray(values)
    if dtype == "int64" and array.dtype.kind == "f" and array.size:
        raise SchemaError(f"table {title!r}: {column.name} is declared int64 but holds floats")
    return pd.Series(array.astype(dtype, copy=False), copy=False)


def _is(dtype: Any, declared: Dtype) -> bool:
    return str(dtype) in (("str", "string", "object") if declared == "str" else (declared,))


@dataclass(frozen=True)
class Skip:
    """Something that could not be computed, and why: what is missing and how to record it next time."""

    subject: str
    reason: str


@dataclass(frozen=True)
class Result:
    """What one analyzer found.

    Attributes:
        analyzer: its registered name.
        title: heading of its section.
        doc: what the section answers, one or two sentences.
        tables: name to DataFrame; the first one is the headline. A table that cannot be computed is
            absent here and present in `skips`.
        schemas: the declared schema of every table.
        skips: what could not be computed.
        meta: scalars that belong to the result as a whole (options used, totals).
    """

    analyzer: str
    title: str
    tables: Mapping[str, pd.DataFrame]
    schemas: Mapping[str, Schema]
    doc: str = ""
    skips: tuple[Skip, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, table in self.tables.items():
            if name not in self.schemas:
                raise SchemaError(f"{self.analyzer}: table {name!r} has no schema")
            self.schemas[name].check(table)

    def __getitem__(self, table: str) -> pd.DataFrame:
        """The table of that name.

        Raises:
            SchemaError: no such table; the message carries the reason when it was skipped.
        """
        if table in self.tables:
            return self.tables[table]
        why = "; ".join(f"{skip.subject}: {skip.reason}" for skip in self.skips)
        raise SchemaError(f"{self.analyzer}: no table {table!r} (has: {', '.join(self.tables)}) {why}")

    def _repr_html_(self) -> str:
        """The result as it shows itself in Jupyter."""
        from tracelens.renderers.html import fragment

        return fragment(self)


@dataclass(frozen=True)
class Report:
    """Several results about the same run, in reading order: what every renderer takes.

    Attributes:
        results: one per analyzer.
        title: heading of the whole.
        meta: tracelens version, inputs, ranks, device names, options; JSON-able values only.
    """

    results: tuple[Result, ...]
    title: str = "tracelens report"
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, analyzer: str) -> Result:
        """The result of that analyzer; raises SchemaError when it is not part of the report."""
        for result in self.results:
            if result.analyzer == analyzer:
                return result
        raise SchemaError(f"no result of {analyzer!r} (has: {', '.join(r.analyzer for r in self.results)})")

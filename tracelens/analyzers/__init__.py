"""Questions about a run: one module an analyzer, one public function, one `Result`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tracelens.registry import Registry
from tracelens.schema import Coded, Result, Schema, Skip, Table

if TYPE_CHECKING:
    from tracelens.trace.run import Run


@dataclass(frozen=True)
class Analyzer:
    """A registered analyzer.

    Attributes:
        name: as in `tracelens analyze NAME`.
        title: heading of its section in a report.
        doc: the question it answers, one line.
        order: position in a report; ties go by name.
        function: (run, **options) -> Result.
        options: names of the options the function takes.
    """

    name: str
    title: str
    doc: str
    order: int
    function: Callable[..., Result]
    options: tuple[str, ...]

    def __call__(self, run: Run, **options: Any) -> Result:
        """Analyze `run`; options that this analyzer does not have are ignored."""
        given = {key: value for key, value in options.items() if key in self.options and value is not None}
        result = self.function(run, **given)
        doc = inspect.getdoc(self.function) or ""
        return replace(
            result,
            analyzer=self.name,
            title=result.title or self.title,
            doc=result.doc or doc.partition("\n\n")[0].replace("\n", " "),
            meta={**given, **result.meta},
        )


ANALYZERS: Registry[Analyzer] = Registry("analyzer", "tracelens.analyzers")


def analyzer(name: str, *, title: str = "", order: int = 1000) -> Callable[[Callable[..., Result]], Analyzer]:
    """Register a function (run, *, options) -> Result as an analyzer.

    The first paragraph of its docstring is the text of its section in a report.
    """

    def keep(function: Callable[..., Result]) -> Analyzer:
        doc = (inspect.getdoc(function) or name).splitlines()[0]
        options = tuple(inspect.signature(function).parameters)[1:]
        item = Analyzer(name, title or name.capitalize(), doc, order, function, options)
        ANALYZERS.add(name, item, function.__module__)
        return item

    return keep


def in_order() -> list[Analyzer]:
    """All analyzers in the order of a report."""
    return sorted((item for _, item in ANALYZERS.items()), key=lambda item: (item.order, item.name))


def result(tables: Mapping[str, Table], skips: Sequence[Skip] = (), **meta: Any) -> Result:
    """A Result without name and text, which the registration adds."""
    return Result("", "", tables, skips=tuple(skips), meta=meta)


def stack(schema: Schema, parts: Sequence[Mapping[str, Any]]) -> Table:
    """One table from column mappings, one a rank, appended in order."""
    if not parts:
        return schema.table({column.name: _empty(column.dtype) for column in schema.columns})
    return schema.table({name: _join([part[name] for part in parts]) for name in schema.names})


def _join(columns: Sequence[Any]) -> Any:
    if len(columns) == 1:
        return columns[0]
    if all(isinstance(column, np.ndarray) for column in columns):
        return np.concatenate(columns)
    if all(isinstance(column, Coded) for column in columns):
        return recode([column.values for column in columns], [column.codes for column in columns])
    return [value for column in columns for value in column]


def recode(values: Sequence[Sequence[str]], codes: Sequence[NDArray[Any]]) -> Coded:
    """One dictionary-encoded column from several, appended."""
    place: dict[str, int] = {}
    for texts in values:
        for text in texts:
            place.setdefault(text, len(place))
    parts = [
        np.array([place[text] for text in texts], dtype=np.int64)[code]
        for texts, code in zip(values, codes, strict=True)
    ]
    return Coded(np.concatenate(parts), list(place))


def _empty(dtype: str) -> Any:
    return [] if dtype in ("str", "category") else np.empty(0, dtype=dtype)


def used(values: Sequence[str], codes: NDArray[Any]) -> Coded:
    """A text column that picks from a long list of texts; only the picked ones travel with the table."""
    distinct, code = np.unique(codes, return_inverse=True)
    texts = [values[place] for place in distinct.tolist()]
    return recode([texts], [code]) if len(set(texts)) < len(texts) else Coded(code, texts)

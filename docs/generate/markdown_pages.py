"""Markdown from data: tables, pages, sections of docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from tracelens.table import Column, Schema

_SECTION = re.compile(r"^([A-Z][a-z]+):$", re.MULTILINE)
_ARGUMENT = re.compile(r"^    (\w+): ", re.MULTILINE)
_TERM = re.compile(r"^[^\s:][^:;]{0,40}: ")


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; "" without rows."""
    cells = [[_cell(value) for value in row] for row in rows]
    lines = [list(head), ["---"] * len(head), *cells] if cells else []
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")


def page(title: str, *parts: str) -> str:
    """A page with what there is of these parts."""
    return "\n\n".join((f"# {title}", *filter(None, parts))) + "\n"


def section(title: str, *parts: str, level: int = 2, anchor: str = "") -> str:
    """A section with what there is of these parts; "" where there is none."""
    if not any(parts):
        return ""
    return "\n\n".join(
        (f"{'#' * level} {title}{f' {{ #{anchor} }}' if anchor else ''}", *filter(None, parts))
    )


def code(language: str, text: str) -> str:
    """A code block."""
    return f"```{language}\n{text.rstrip()}\n```"


def docstring(function: Callable[..., object]) -> dict[str, str]:
    """The sections of a docstring by name, dedented; what is above the first one under ""."""
    head, *rest = _SECTION.split(inspect.getdoc(function) or "")
    named = zip(rest[::2], rest[1::2], strict=True)
    return {"": head.strip()} | {name: inspect.cleandoc(f"\n{text}") for name, text in named}


def arguments(function: Callable[..., object]) -> dict[str, str]:
    """What the docstring says of each argument."""
    text = _SECTION.split(inspect.getdoc(function) or "")
    named = dict(zip(text[1::2], text[2::2], strict=True)).get("Args", "")
    _, *rest = _ARGUMENT.split(named)
    return {name: " ".join(meaning.split()) for name, meaning in zip(rest[::2], rest[1::2], strict=True)}


def schemas(tables: Mapping[str, Schema], in_reports: bool = True) -> str:
    """The tables of a result: a list of them, then the columns of each.

    Args:
        tables: by name.
        in_reports: whether reports have them, of which some formats leave out some.
    """
    rows = [
        (f"[`{name}`](#{name})", schema.title, *([_where(schema)] if in_reports else []))
        for name, schema in tables.items()
    ]
    head = ("table", "title", *(["in"] if in_reports else []))
    listed = section("Tables", table(head, rows))
    return "\n\n".join(filter(None, (listed, *(_schema(name, schema) for name, schema in tables.items()))))


def _where(schema: Schema) -> str:
    if schema.drawn:
        return "the picture of an HTML report"
    return "JSON, CSV, XLSX" if schema.detail else "all formats"


def _schema(name: str, schema: Schema) -> str:
    doc = schema.doc
    for column in schema.columns:
        if len(_terms(column)) > 1:  # said once, in the column
            doc = doc.replace(f"{column.doc}.", "").strip()
    rows = [
        (f"`{column.name}`", column.dtype, column.unit, "<br>".join(_terms(column)))
        for column in schema.columns
    ]
    title = f"{schema.title}: `{name}`"
    return section(title, doc, table(("column", "type", "unit", "meaning"), rows), level=3, anchor=name)


def _terms(column: Column) -> list[str]:
    """The meaning of a column; of one that lists its values, one line a value."""
    lines: list[str] = []
    for part in column.doc.split("; "):
        if _TERM.match(part) or not lines:
            lines.append(part)
        else:
            lines[-1] += f"; {part}"
    if len(lines) < 3 or not all(map(_TERM.match, lines)):
        return [column.doc]
    return [f"*{name}*: {meaning}" for name, meaning in (line.split(": ", 1) for line in lines)]

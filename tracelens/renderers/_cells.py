"""Tables as HTML rows, joined from escaped strings: a template's loop over cells is ten times slower."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from tracelens.renderers._entries import Entry, entries
from tracelens.renderers._format import PERCENT, Shown, look, one_line, shorten
from tracelens.renderers._rows import Cut, cut, more
from tracelens.schema import Result

if TYPE_CHECKING:
    from markupsafe import Markup

_NAME_WIDTH = 72
# The whole name of a deeply templated kernel can be 8,000 characters, in hundreds of rows.
_TITLE_WIDTH = 1200


@dataclass(frozen=True)
class Grid:
    """One table, ready for the template.

    Attributes:
        id: anchor, unique in the page.
        title, doc: from the schema.
        head: cells of the header row.
        body: all rows.
        note: the line below the table, about what was cut; may be empty.
        rows: number of rows in `body`.
        tree: the rows are a tree.
        entries: the rows of a table that is shown as entries, with no head and no body; else empty.
    """

    id: str
    title: str
    doc: str
    head: Markup
    body: Markup
    note: str
    rows: int
    tree: bool
    entries: list[Entry] = field(default_factory=list)


def grid(result: Result, name: str, limit: int, *, buttons: bool) -> Grid:
    """The first `limit` rows of table `name` as HTML.

    Args:
        result: holds the table and its schema.
        name: of the table.
        limit: at most so many rows; a tree keeps its largest nodes.
        buttons: with the controls that report.js brings to life; without them every row is visible.
    """
    from markupsafe import Markup

    table = result.data[name]
    part = cut(table, limit)
    if table.schema.entries:
        return _told(result, name, part)
    hows = [look(table, column) for column in part.columns]
    columns = [_column(how, part.cells(how.column)) for how in hows]
    if part.depth is not None:
        columns[0] = _nested(columns[0], part.depth, buttons)
    opening = _openings(part, buttons)
    rows = "\n".join(map("".join, zip(opening, *columns, strict=True)))
    return Grid(
        id=f"{result.analyzer}-{name}",
        title=table.schema.title,
        doc=table.schema.doc,
        head=Markup("").join(_heading(how, buttons) for how in hows),
        body=Markup(rows),
        note=more(result, part),
        rows=part.count,
        tree=part.depth is not None,
    )


def _told(result: Result, name: str, part: Cut) -> Grid:
    from markupsafe import Markup

    schema, none = part.table.schema, Markup("")
    about = (f"{result.analyzer}-{name}", schema.title, schema.doc)
    return Grid(*about, none, none, more(result, part), part.count, False, entries(part))


def _openings(part: Cut, buttons: bool) -> Iterable[str]:
    if part.depth is None or not buttons:
        return ["<tr>"] * part.count
    return [f'<tr data-d="{depth}"{" hidden" if depth > 1 else ""}>' for depth in part.depth]


def _heading(how: Shown, buttons: bool) -> Markup:
    from markupsafe import Markup

    title = " - ".join(filter(None, (how.column.name, how.column.doc)))
    cell = Markup('<th scope=col class={} title="{}">{}</th>')
    if buttons:
        cell = Markup('<th scope=col class={} title="{}" aria-sort=none><button type=button>{}</button></th>')
    return cell.format("n" if how.numeric else "s", one_line(title), how.header)


def _column(how: Shown, cells: list[Any]) -> list[str]:
    from markupsafe import escape

    texts = how.texts(cells)
    if how.column.prose:
        return [f"<td class=p>{escape(shorten(text, _TITLE_WIDTH))}</td>" for text in texts]
    if not how.numeric:
        return [_name_cell(text) for text in texts]
    pairs = zip(cells, texts, strict=True)
    if how.column.unit not in PERCENT:
        return [f"<td data-v={value!r}>{text}</td>" for value, text in pairs]
    return [
        f'<td class=f data-v={value!r} style="--f:{min(max(value, 0), 1):.3f}">{text}</td>'
        for value, text in pairs
    ]


@lru_cache(maxsize=4096)
def _name_cell(text: str) -> str:
    from markupsafe import escape

    if len(text) <= _NAME_WIDTH:
        return f"<td>{escape(text)}</td>"
    return (
        f'<td class=l title="{escape(shorten(text, _TITLE_WIDTH))}">{escape(shorten(text, _NAME_WIDTH))}</td>'
    )


def _nested(cells: list[str], depths: list[int], buttons: bool) -> list[str]:
    inner = [*depths[1:], 0][: len(depths)]
    button = "<button type=button class=tw aria-label=children aria-expanded={}></button>"
    nested = []
    for cell, depth, following in zip(cells, depths, inner, strict=True):
        toggle = button.format("true" if depth < 1 else "false") if buttons and following > depth else ""
        head, _, rest = cell.partition(">")
        nested.append(f'{head} style="--d:{depth}">{toggle}<span>{rest.removesuffix("</td>")}</span></td>')
    return nested

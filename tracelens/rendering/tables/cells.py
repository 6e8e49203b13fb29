"""Tables as HTML rows, joined from escaped strings: a template's loop over cells is ten times slower."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from tracelens.rendering.tables.entries import Entry, entries
from tracelens.rendering.tables.names import shortened_names
from tracelens.rendering.tables.rows import Cut, ShownColumn, cut, more
from tracelens.rendering.tables.values import ColumnFormat, one_line, shorten
from tracelens.table import Result, Table
from tracelens.units import PERCENT

if TYPE_CHECKING:
    from markupsafe import Markup

_NAME_WIDTH = 72
_BESIDE_WIDTH = 40  # of long names that stand beside others
# The whole name of a deeply templated kernel can be 8,000 characters, in hundreds of rows.
_TITLE_WIDTH = 1200
_MANGLED = re.compile(r"^ *_Z|\.kd$|\[clone [^\]]*\]$")
_WRAPPED = '"f w"'  # a percentage with its reason


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


def grid(
    result: Result,
    name: str,
    table: Table,
    limit: int,
    *,
    buttons: bool,
    names: Mapping[str, Mapping[str, str]] | None = None,
) -> Grid:
    """The first `limit` rows of a table as HTML.

    Args:
        result: holds the table.
        name: of the table.
        table: as it is to be read.
        limit: at most so many rows; a tree keeps its largest nodes.
        buttons: with the controls that the page's script brings to life. Without them every row is visible,
            and the table is legible where styles are dropped, as on GitHub.
        names: as of `short_names`, if they are to be those of a larger table.
    """
    from markupsafe import Markup

    part = cut(table, limit)
    heading = (f"{result.analyzer}-{name}", table.schema.title, table.schema.doc)
    if table.schema.kind == "entries":
        empty = Markup("")
        return Grid(*heading, empty, empty, more(result, part), part.count, False, entries(part))
    names = short_names(table) if names is None else names
    columns = [_column(shown, names.get(shown.column.name, {})) for shown in part.columns]
    if not buttons:
        columns = [_aligned(shown, cells) for shown, cells in zip(part.columns, columns, strict=True)]
    if part.depth is not None:
        columns[0] = _nested(columns[0], part.depth, buttons)
    opening = _openings(part, buttons)
    head = Markup("").join(_heading(shown.format, buttons) for shown in part.columns)
    body = Markup("\n".join(map("".join, zip(opening, *columns, strict=True))))
    return Grid(*heading, head, body, more(result, part), part.count, part.depth is not None)


def _openings(part: Cut, buttons: bool) -> Iterable[str]:
    if part.depth is None or not buttons:
        return ["<tr>"] * part.count
    return [f'<tr data-d="{depth}"{" hidden" if depth > 1 else ""}>' for depth in part.depth]


def _heading(fmt: ColumnFormat, buttons: bool) -> Markup:
    from markupsafe import Markup

    title = " - ".join(filter(None, (fmt.column.name, fmt.column.doc)))
    cell = Markup('<th scope=col class={} title="{}">{}</th>')
    if buttons:
        cell = Markup('<th scope=col class={} title="{}" aria-sort=none><button type=button>{}</button></th>')
    return cell.format("n" if fmt.column.is_number else "s", one_line(title), fmt.header)


def short_names(table: Table) -> dict[str, dict[str, str]]:
    """What stands for names: column to name to short form, of those that do not stand as they are.

    Names are on one line. They have fewer characters where several columns of long ones would hide numbers.
    """
    columns = [column.name for column in table.schema.columns if column.is_text and not column.prose]
    names = {name: list(map(one_line, table.coded(name).values)) for name in columns}
    long = sum(any(len(text) > _BESIDE_WIDTH for text in texts) for texts in names.values())
    width = _BESIDE_WIDTH if long > 1 else _NAME_WIDTH
    return {name: _short_forms(texts, width) for name, texts in names.items()}


def _short_forms(texts: list[str], width: int) -> dict[str, str]:
    # Most names of a table fit, and need not be looked at unless a shortened one looks like them.
    changing = [text for text in texts if len(text) > width or _MANGLED.search(text)]
    forms = dict(zip(changing, shortened_names(changing, width), strict=True))
    fitting = set(texts).difference(changing)
    if not fitting.isdisjoint(forms.values()):
        forms = dict(zip(texts, shortened_names(texts, width), strict=True))
    return {text: form for text, form in forms.items() if form != text}


def _column(shown: ShownColumn, names: Mapping[str, str]) -> list[str]:
    from markupsafe import escape

    if shown.column.prose:
        return [f"<td class=p>{escape(shorten(text, _TITLE_WIDTH))}</td>" for text in shown.texts]
    if not shown.column.is_number:
        return [_name_cell(text, names.get(text, text)) for text in shown.texts]
    pairs = zip(shown.cells, shown.texts, strict=True)
    if shown.column.unit not in PERCENT:
        return [f"<td data-v={value!r}>{text}</td>" for value, text in pairs]
    return [
        f"<td class={_WRAPPED if '(' in text else 'f'} data-v={value!r} "
        f'style="--f:{min(max(value, 0), 1):.3f}">{escape(text)}</td>'
        for value, text in pairs
    ]


@lru_cache(maxsize=4096)
def _name_cell(text: str, short: str) -> str:
    from markupsafe import escape

    if short == text:
        return f"<td>{escape(text)}</td>"
    return f'<td class=l title="{escape(shorten(text, _TITLE_WIDTH))}">{escape(short)}</td>'


def _aligned(shown: ShownColumn, cells: list[str]) -> list[str]:
    if shown.column.is_number:
        return cells
    return [f"<td align=left{cell.removeprefix('<td')}" for cell in cells]


def _nested(cells: list[str], depths: list[int], buttons: bool) -> list[str]:
    inner = [*depths[1:], 0][: len(depths)]
    button = "<button type=button class=tw aria-label=children aria-expanded={}></button>"
    nested = []
    for cell, depth, following in zip(cells, depths, inner, strict=True):
        head, _, rest = cell.partition(">")
        if not buttons:
            nested.append(f"{head}>{'&emsp;' * depth}{rest}")
            continue
        toggle = button.format("true" if depth < 1 else "false") if following > depth else ""
        nested.append(f'{head} style="--d:{depth}">{toggle}<span>{rest.removesuffix("</td>")}</span></td>')
    return nested

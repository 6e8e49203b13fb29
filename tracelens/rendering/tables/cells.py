"""Tables as HTML rows, joined from escaped strings: a template's loop over cells is ten times slower."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from tracelens.rendering.tables.rows import ProseRow, ShownColumn, cut, entries, more
from tracelens.rendering.tables.values import each_on_one_line, one_line, shorten, shortened_names
from tracelens.table import Result, Table
from tracelens.units import PERCENT

if TYPE_CHECKING:
    from markupsafe import Markup

_NAME_WIDTH = 72
_BESIDE_WIDTH = 40  # of long names that stand beside others
# The whole name of a deeply templated kernel can be 8,000 characters, in hundreds of rows.
_TITLE_WIDTH = 1200
_WRAPPED = '"f w"'  # a percentage with its reason


class Grid(Struct, frozen=True):
    """One table, ready for the template."""

    id: str  # anchor, unique in the page
    title: str  # from the schema
    doc: str  # from the schema
    head: Markup  # cells of the header row
    body: Markup  # all rows
    note: str  # the line below the table, about what was cut; may be empty
    rows: int  # number of rows in `body`
    tree: bool  # the rows are a tree
    # the rows of a table that is shown as entries, with no head and no body; else empty
    entries: list[ProseRow] = field(default_factory=list)


def grid(
    result: Result,
    name: str,
    table: Table,
    limit: int,
    *,
    buttons: bool,
    names: Mapping[str, Mapping[str, str]] | None = None,
) -> Grid:
    """The first `limit` rows of a table as HTML; a tree keeps its largest nodes.

    With `buttons` it has the controls that the page's script brings to life. Without them every row is
    visible, and the table is legible where styles are dropped, as on GitHub. `names` are as of `short_names`,
    if they are to be those of a larger table.
    """
    from markupsafe import Markup, escape

    part = cut(table, limit)
    made = Grid(
        id=f"{result.analyzer}-{name}",
        title=table.schema.title,
        doc=table.schema.doc,
        head=Markup(""),
        body=Markup(""),
        note=more(result, part),
        rows=part.count,
        tree=part.depth is not None,
    )
    if table.schema.kind == "entries":
        return replace(made, entries=entries(part))
    names = short_names(table) if names is None else names
    columns = [_column(shown, names.get(shown.column.name, {})) for shown in part.columns]
    if not buttons:
        columns = [
            cells
            if shown.column.is_number
            else [f"<td align=left{cell.removeprefix('<td')}" for cell in cells]
            for shown, cells in zip(part.columns, columns, strict=True)
        ]
    opening = ["<tr>"] * part.count
    if part.depth is not None:
        # Names stand at their depth, behind a button where rows below belong to them.
        button = "<button type=button class=tw aria-label=children aria-expanded={}></button>"
        for row, (depth, following) in enumerate(zip(part.depth, [*part.depth[1:], 0], strict=False)):
            head, _, rest = columns[0][row].partition(">")
            if not buttons:
                columns[0][row] = f"{head}>{'&emsp;' * depth}{rest}"
                continue
            toggle = button.format("true" if depth < 1 else "false") if following > depth else ""
            cell = rest.removesuffix("</td>")
            columns[0][row] = f'{head} style="--d:{depth}">{toggle}<span>{cell}</span></td>'
        if buttons:
            opening = [f'<tr data-d="{depth}"{" hidden" if depth > 1 else ""}>' for depth in part.depth]
    opened, closed = (" aria-sort=none><button type=button>", "</button>") if buttons else (">", "")
    headers = []
    for shown in part.columns:
        title = " - ".join(filter(None, (shown.column.name, shown.column.doc)))
        kind = "n" if shown.column.is_number else "s"
        headers.append(f'<th scope=col class={kind} title="{escape(one_line(title))}"{opened}')
        headers.append(f"{escape(shown.format.header)}{closed}</th>")
    body = Markup("\n".join(map("".join, zip(opening, *columns, strict=True))))
    return replace(made, head=Markup("".join(headers)), body=body)


def short_names(table: Table) -> dict[str, dict[str, str]]:
    """What stands for names: column to name to short form, of those that do not stand as they are.

    Names are on one line. They have fewer characters where several columns of long ones would hide numbers.
    """
    columns = [column.name for column in table.schema.columns if column.is_text and not column.prose]
    names = {name: each_on_one_line(table.coded(name).values) for name in columns}
    long = sum(any(len(text) > _BESIDE_WIDTH for text in texts) for texts in names.values())
    width = _BESIDE_WIDTH if long > 1 else _NAME_WIDTH
    short = {}
    for name, texts in names.items():
        # Most names of a table fit and are not mangled: they need no look unless a shortened one looks alike.
        changing = [
            text for text in texts if len(text) > width or "_Z" in text or ".kd" in text or "[clone" in text
        ]
        forms = dict(zip(changing, shortened_names(changing, width), strict=True))
        fitting = set(texts).difference(changing)
        if not fitting.isdisjoint(forms.values()):
            forms = dict(zip(texts, shortened_names(texts, width), strict=True))
        short[name] = {text: form for text, form in forms.items() if form != text}
    return short


def _column(shown: ShownColumn, names: Mapping[str, str]) -> list[str]:
    from markupsafe import escape

    if shown.column.prose:
        return [f"<td class=p>{escape(shorten(text, _TITLE_WIDTH))}</td>" for text in shown.texts]
    if not shown.column.is_number:
        return [_name_cell(text, names.get(text, text)) for text in shown.texts]
    pairs = zip(shown.cells, shown.texts, strict=True)
    if shown.column.unit not in PERCENT:
        return [
            f"<td data-v{'' if value is None else f'={_exact(value)}'}>{text}</td>" for value, text in pairs
        ]
    return [
        f"<td class={_WRAPPED if '(' in text else 'f'} data-v={_exact(value)} "
        f'style="--f:{min(max(value, 0), 1):.3f}">{escape(text)}</td>'
        if value is not None
        else f"<td class=f data-v>{text}</td>"
        for value, text in pairs
    ]


def _exact(value: float) -> str:
    """The value that a cell is sorted by: of a fraction 12 digits, as the last ones depend on the machine."""
    return repr(value) if isinstance(value, int) else f"{value:.12g}"


@lru_cache(maxsize=4096)
def _name_cell(text: str, short: str) -> str:
    from markupsafe import escape

    if short == text:
        return f"<td>{escape(text)}</td>"
    return f'<td class=l title="{escape(shorten(text, _TITLE_WIDTH))}">{escape(short)}</td>'

"""What a reader sees of a result: its readable tables, their first rows or largest nodes, and entries.

A table with levels is one for each of them; places in traces are one column; rows with much prose are read
one by one: a name, a few short facts, and sentences.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from tracelens.arrays import ordered, typical_step, unique
from tracelens.rendering.tables.across import (
    across_ranks,
    is_across,
    leading_column,
    parent_rows,
    position_on_rank,
)
from tracelens.rendering.tables.values import (
    ABSENT,
    ColumnFormat,
    column_formats,
    encodable,
    explained,
    label,
    one_line,
    shorten,
)
from tracelens.table import Column, Report, Result, Rows, Skip, Table
from tracelens.units import PERCENT

_BRIEF = 3
_OF_RANK = re.compile(r"^rank \d+(: |$)")


class Tree(Struct, frozen=True):
    """The chosen nodes of a table with `node` and `parent`, depth first, larger siblings first."""

    rows: list[int]  # row position in the table, of every chosen node
    depth: list[int]  # of every chosen node, roots are 0
    parent: list[int]  # index into `rows` of the node's parent, -1 for roots
    left_out: list[int]  # per chosen node, how many of its own children were not chosen


class ShownColumn(NamedTuple):
    """A column with its shown cells, raw and as text."""

    format: ColumnFormat
    cells: list[Any]
    texts: list[str]

    @property
    def column(self) -> Column:
        return self.format.column


class Cut(Struct, frozen=True):
    """What is shown of one table."""

    table: Table  # the whole table
    count: int  # number of the shown rows
    columns: list[ShownColumn]  # a tree leaves out `node` and `parent` and begins with the name
    depth: list[int] | None  # nesting of every row of a tree, None for other tables


_LEVELS = 12
_RANK, _AT = "_rank", "_ts_ns"
_CLOCK = "Positions are times since the trace's first event, as in Perfetto."

# Names stand on a line of their own; sentences are whole, unless a trace makes them endless.
NAME_WIDTH = 160
_PROSE_WIDTH = 1200
_LINE_WIDTH = 4000


class Fact(Struct, frozen=True):
    """One short cell: 'saving' '728.300 ms'."""

    label: str  # what it is; empty where the text says it itself ('87.3% of the step')
    text: str  # the value with its unit
    doc: str  # what the column means

    def __str__(self) -> str:
        return f"{self.label} {self.text}".strip()


class ProseRow(Struct, frozen=True):
    """One row that is read by itself."""

    number: str  # its place in a table that is ranked, else empty
    name: str  # its first text
    share: float | None  # its first fraction, 0-1, if the table has one and it is known
    share_at: int  # where among the facts that fraction is, else -1
    facts: list[Fact]  # the other short cells that are known, in order of the columns
    prose: list[tuple[str, str]]  # (label, text) of the sentences that are there
    folded: list[tuple[str, str]]  # (label, text) of the lines to copy, such as commands


def cut(table: Table, limit: int) -> Cut:
    """At most `limit` rows: the first ones, or the largest nodes of a tree with their ancestors.

    Of a table that lists one rank after the other, the first rows of every rank. Of a table that is to be
    brief, a third.
    """
    if table.schema.brief:
        limit = max(limit // _BRIEF, 1)
    if table.schema.kind != "tree":
        rows: Rows = slice(limit)
        if len(table) > limit and _is_rank_by_rank(table):
            # As many of each rank; where there are more ranks than room, of those with most.
            position, leading = position_on_rank(table.array("rank")), leading_column(table)
            size = table.array(leading.name) if leading else np.zeros(len(table))
            first = np.lexsort((-size, position))[:limit]
            by_size = first[np.argsort(-size[first], kind="stable")]
            rows = by_size if table.schema.descending else np.sort(first)
        shown = _shown(table, table.schema.columns, rows)
        return Cut(table, min(limit, len(table)), shown, None)
    tree = select(table, limit)
    shown = _shown(table, shown_columns(table), tree.rows)
    return Cut(table, len(tree.rows), shown, tree.depth)


def shown_columns(table: Table) -> list[Column]:
    """The columns in the order shown; a tree leaves out `node` and `parent` and begins with the name."""
    if table.schema.kind != "tree":
        return list(table.schema.columns)
    columns = [column for column in table.schema.columns if column.name not in ("node", "parent")]
    text = [column for column in columns if column.is_text]
    first = next((column for column in text if column.name == "name"), text[0] if text else columns[0])
    return sorted(columns, key=lambda column: column is not first)


def _is_rank_by_rank(table: Table) -> bool:
    """Whether all rows of a rank stand before those of the next."""
    if "rank" not in table.columns:
        return False
    rank = table.array("rank")
    return bool(len(rank)) and rank[0] != rank[-1] and bool((np.diff(rank) >= 0).all())


def _shown(table: Table, columns: Iterable[Column], rows: Rows) -> list[ShownColumn]:
    formats = column_formats(table)
    shown = []
    for column in columns:
        fmt, cells = formats[column.name], table.cells(column.name, rows)
        shown.append(ShownColumn(fmt, cells, explained(table, column, rows, fmt.texts(cells))))
    return shown


def more(result: Result, part: Cut) -> str:
    """The line under a table that was cut; empty when every row is shown."""
    if part.count == len(part.table):
        return ""
    command = result.command or f"tracelens analyze {result.analyzer} PATH"
    whole = "those of each rank" if is_across(part.table) else "all of them"
    which = ""
    if part.depth is not None:
        which = "; the smallest are left out"
    elif _is_rank_by_rank(part.table):
        leading = leading_column(part.table)
        of_time = leading is not None and leading.unit == "ns"
        first = "first" if not part.table.schema.descending else "longest" if of_time else "largest"
        shown = next(shown for shown in part.columns if shown.column.name == "rank")
        ranks, shown_ranks = len(unique(part.table.array("rank"))), len(set(shown.cells))
        which = f", the {first} of each rank"
        if shown_ranks < ranks:
            which = f", the {first} of {shown_ranks} ranks; {ranks - shown_ranks} ranks are left out"
    rows = f"{part.count:,} of {len(part.table):,} rows{which}"
    names_output = any(option in command for option in (" -o ", " --report "))
    return f"{rows}; {whole}: {command}" + ("" if names_output else " --json or -o DIR for CSV")


def details(result: Result) -> str:
    """The line that names the tables whose rows only the machine formats hold; empty when there are none."""
    names = [
        f"{table.schema.title} ({len(table):,} rows)"
        for table in result.data.values()
        if table.schema.detail and not table.schema.drawn and not _says_nothing(result)
    ]
    return f"Only in JSON, CSV and XLSX: {', '.join(names)}" if names else ""


def skipped(result: Result) -> list[tuple[str, str]]:
    """(subjects, reason) of what was skipped; what has the same reason, as on every rank, is one entry."""
    subjects: dict[str, list[str]] = {}
    for skip in result.skips:
        subjects.setdefault(one_line(skip.reason), []).append(one_line(skip.subject))
    return [("; ".join(names), reason) for reason, names in subjects.items()]


def readable(result: Result) -> dict[str, Table]:
    """The tables as they are meant to be read, in order; empty ones only where no skip says why."""
    if _says_nothing(result):
        return {}
    explained = {skip.subject.casefold() for skip in result.skips}
    readable_tables: dict[str, Table] = {}
    for name, table in result.data.items():
        empty = not len(table) and table.schema.title.casefold() in explained
        if not (table.schema.detail or table.schema.drawn or empty):
            readable_tables |= by_level(name, with_places(table))
    return readable_tables


def compared(result: Result) -> dict[str, Table]:
    """The readable tables, of one step, with one row for what several ranks have where these compare."""
    tables = {name: of_typical_step(table) for name, table in readable(result).items()}
    return {name: across_ranks(table) or table for name, table in tables.items()}


def for_people(report: Report, *, parts: bool = False) -> Report:
    """The report with the results that say nothing gathered in one at the end, if others say something.

    With `parts`, what each of several others lacks stands there as well as in its own section.
    """
    silent = [result for result in report.results if _is_silent(result)]
    spoken = tuple(result for result in report.results if not _is_silent(result))
    if not spoken:
        return report
    reasons = {result.title: dict.fromkeys(reason for _, reason in skipped(result)) for result in silent}
    skips = [Skip(title, "; ".join(texts)) for title, texts in reasons.items()]
    skips += (
        [skip for result in spoken for skip in _missing_parts(result)] if parts and len(spoken) > 1 else []
    )
    if not skips:
        return report
    gathered = Result(
        "not_in_these_traces",
        "Not in these traces",
        {},
        doc="Skipped: the traces have no data for it.",
        skips=tuple(skips),
    )
    return replace(report, results=(*spoken, gathered))


def _missing_parts(result: Result) -> list[Skip]:
    """What a result could not compute, of all ranks together: 'Steps: memory.peak', and why."""
    parts: dict[str, dict[str, None]] = {}
    for skip in result.skips:
        parts.setdefault(one_line(skip.reason), {})[_OF_RANK.sub("", one_line(skip.subject))] = None
    skips = []
    for reason, named in parts.items():
        names = [*filter(None, named)]
        more = f" and {len(names) - _BRIEF} more" if len(names) > _BRIEF else ""
        subject = f"{result.title}: {'; '.join(names[:_BRIEF])}{more}" if names else result.title
        skips.append(Skip(subject, reason))
    return skips


def _is_silent(result: Result) -> bool:
    """Whether the traces have nothing for this result; one that failed is not silent about it."""
    return _says_nothing(result) and not result.failures


def _says_nothing(result: Result) -> bool:
    return bool(result.skips) and not any(len(table) for table in result.data.values())


def select(table: Table, limit: int, size: str = "") -> Tree:
    """The `limit` largest nodes, with all their ancestors, by the column `size`, else see `size_column`.

    Node numbers are per rank when there is a `rank` column. A parent that is not in the table makes a root.
    """
    parents = parent_rows(table)
    size = size or size_column(table)
    sizes = table.array(size) if size else np.zeros(len(table), np.int64)
    order = ordered(-sizes)
    kept = set(range(len(table))) if len(table) <= limit else set()
    for start in order if len(table) > limit else ():
        chain: list[int] = []
        row = int(start)
        while row >= 0 and row not in kept and row not in chain:
            chain.append(row)
            row = int(parents[row])
        kept.update(chain[::-1][: limit - len(kept)])  # the ancestors first: a node never stands alone
        if len(kept) == limit:
            break
    if len(kept) < len(table):
        rows = np.array(sorted(kept), np.int64)
        order = rows[ordered(-sizes[rows])]
    children: dict[int, list[int]] = {}
    for row, parent in zip(order.tolist(), parents[order].tolist(), strict=True):
        children.setdefault(parent, []).append(row)
    counts = np.bincount(parents[parents >= 0], minlength=len(table))
    tree = Tree([], [], [], [])
    # A cycle has no root to be reached from; its nodes follow as roots, so that no row is lost.
    for root in (*sorted(children.get(-1, ())), *sorted(kept)):
        stack = [(root, -1, 0)]
        while stack:
            row, parent, depth = stack.pop()
            if row not in kept:
                continue
            kept.discard(row)
            index = len(tree.rows)
            tree.rows.append(row)
            tree.parent.append(parent)
            tree.depth.append(depth)
            stack.extend((child, index, depth + 1) for child in reversed(children.get(row, ())))
    tree.left_out.extend(int(counts[row]) - len(children.get(row, ())) for row in tree.rows)
    return tree


def size_column(table: Table) -> str:
    """The column by which the nodes of a tree are large; empty where none is."""
    units = [(column.unit, column.name) for column in table.schema.columns]
    return next((name for size in ("ns", "bytes", "count") for unit, name in units if unit == size), "")


def by_level(name: str, table: Table) -> dict[str, Table]:
    """A table with levels as one table for each of them, by name and in order; any other as it is.

    The first level is what one came for; the others are brief. A level of one row repeats the whole and is
    left out where another has more; so is a column with the level's own name, which repeats the rows' names.
    """
    if table.schema.kind != "levels" or not len(table):
        return {name: table}
    level = table.coded("level")
    rows = {text: np.flatnonzero(level.equals(text)) for text in dict.fromkeys(level.texts())}
    if len(rows) > _LEVELS:
        return {name: table}
    telling = [text for text, of_level in rows.items() if len(of_level) > 1] or list(rows)
    schema = table.schema
    parts = {}
    for number, text in enumerate(telling):
        part = replace(
            schema,
            title=f"{schema.title} by {text}",
            columns=tuple(column for column in schema.columns[1:] if column.name != text),
            doc="" if number else schema.doc,
            kind="list",
            brief=number > 0,
        )
        anchor = re.sub(r"\W+", "-", text)
        parts[f"{name}-{anchor}"] = table.with_schema(part).take(rows[text])
    return parts


def of_typical_step(table: Table) -> Table:
    """A tree of several steps as that of the step that stands for the run, any other table as it is.

    Where there is room for a few rows, the steps themselves would take most of them.
    """
    if table.schema.kind != "tree" or "level" not in table.columns:
        return table
    # The row at the top above each row.
    parents = parent_rows(table)
    root = np.where(parents < 0, np.arange(len(table)), parents)
    while (root != root[root]).any():
        root = root[root]
    names, sizes = table.coded("name"), table.array("exclusive_ns")
    tops = unique(root)
    by_step: dict[str, list[int]] = {}
    for row, name, level in zip(tops, names.texts(tops), table.coded("level").texts(tops), strict=True):
        if level != "step":
            return table
        by_step.setdefault(name, []).append(int(sizes[row]))
    if len(by_step) < 2:
        return table
    durations, ranks = [sum(each) for each in by_step.values()], max(map(len, by_step.values()))
    chosen = list(by_step)[typical_step(durations, ranks)]
    doc = f"{chosen}, which stands for {len(by_step)} steps; for another: --step."
    schema = replace(table.schema, doc=f"{table.schema.doc} {doc}".strip())
    return table.with_schema(schema).take(np.flatnonzero(names.equals(chosen)[root]))


def with_places(table: Table) -> Table:
    """A table whose columns `x_rank` and `x_ts_ns` are one, `in x`: 'rank 0 at 551.890 ms'."""
    names = table.schema.names
    stems = [name.removesuffix(_AT) for name in names if name.endswith(_AT)]
    places = {stem: f"in_{stem}" for stem in stems if stem + _RANK in names}
    if not places:
        return table
    formats = column_formats(table)
    columns: list[Column] = []
    data = dict(table.columns)
    for column in table.schema.columns:
        stem = column.name.removesuffix(_AT)
        if column.name in (stem + _RANK for stem in places):
            continue
        if stem == column.name or stem not in places:
            columns.append(column)
            continue
        columns.append(Column(places[stem], "str", doc=column.doc))
        fmt, times = formats[column.name], table.cells(column.name)
        # "" where it is not known.
        data[places[stem]] = [
            "" if rank is None or text == ABSENT else f"rank {rank} at {text} {fmt.unit}"
            for rank, text in zip(table.cells(stem + _RANK), fmt.texts(times), strict=True)
        ]
    doc = f"{table.schema.doc} {_CLOCK}".strip()
    schema = replace(table.schema, columns=tuple(columns), doc=doc)
    return Table(schema, {column.name: data[column.name] for column in columns})


def entries(part: Cut) -> list[ProseRow]:
    """The shown rows of a table as entries."""
    columns = part.columns
    long = {shown.column.name for shown in columns if shown.column.prose or shown.column.folded}
    name = next((shown for shown in columns if shown.column.is_text and shown.column.name not in long), None)
    ranked = columns[0].column.unit == "count" and columns[0].cells == list(range(1, part.count + 1))
    ranking = columns[0] if ranked else None
    short = [
        shown
        for shown in columns
        if shown.column.name not in long and shown is not name and shown is not ranking
    ]
    share = next((shown for shown in short if shown.column.unit == "fraction"), None)

    def copied(cell: Any) -> str:
        """A line to copy: as it is, or not at all."""
        text = str(cell)
        if len(text) > _LINE_WIDTH:
            return f"{len(text):,} characters, which only JSON and CSV hold"
        return encodable(one_line(text))

    made = []
    for row in range(part.count):
        facts: list[Fact] = []
        share_at = -1
        for shown in short:
            text, column = shown.texts[row].strip(), shown.column
            if not text or text == ABSENT:
                continue
            name_of_fact, doc = label(column), one_line(column.doc)
            if column.unit in PERCENT and doc.startswith("of "):
                # A share is best read with its whole.
                name_of_fact, text = "", f"{text} {doc.partition(',')[0]}"
            elif shown.format.unit:
                text = f"{text} {shown.format.unit}"
            share_at = len(facts) if shown is share else share_at
            facts.append(Fact(name_of_fact, shorten(text, NAME_WIDTH), doc))
        made.append(
            ProseRow(
                number=ranking.texts[row] if ranking else "",
                name=shorten(name.texts[row].strip(), NAME_WIDTH) or ABSENT if name else ABSENT,
                share=min(max(float(share.cells[row]), 0.0), 1.0) if share and share_at >= 0 else None,
                share_at=share_at,
                facts=facts,
                prose=[
                    (label(shown.column), shorten(shown.texts[row], _PROSE_WIDTH))
                    for shown in columns
                    if shown.column.prose and shown.texts[row].strip()
                ],
                folded=[
                    (label(shown.column), copied(shown.cells[row]))
                    for shown in columns
                    if shown.column.folded and str(shown.cells[row])
                ],
            )
        )
    return made

"""Which rows and columns of a table a reader sees: the first ones, or the largest nodes of a tree."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tracelens.arrays import Float, Int
from tracelens.rendering.tables.across import across_ranks, is_across, leading_column, position_on_rank
from tracelens.rendering.tables.reading import by_level, parent_rows, typical_step, with_places
from tracelens.rendering.tables.values import ColumnFormat, column_format, explained, one_line
from tracelens.table import Column, Report, Result, Rows, Skip, Table

_BRIEF = 3


@dataclass(frozen=True)
class Tree:
    """The chosen nodes of a table with `node` and `parent`, depth first, larger siblings first.

    Attributes:
        rows: row position in the table, of every chosen node.
        depth: of every chosen node, roots are 0.
        parent: index into `rows` of the node's parent, -1 for roots.
        left_out: per chosen node, how many of its own children were not chosen.
    """

    rows: list[int]
    depth: list[int]
    parent: list[int]
    left_out: list[int]


@dataclass(frozen=True)
class ShownColumn:
    """A column with its shown cells, raw and as text."""

    format: ColumnFormat
    cells: list[Any]
    texts: list[str]

    @property
    def column(self) -> Column:
        return self.format.column


@dataclass(frozen=True)
class Cut:
    """What is shown of one table.

    Attributes:
        table: the whole table.
        count: number of the shown rows.
        columns: a tree leaves out `node` and `parent` and begins with the name.
        depth: nesting of every row of a tree, None for other tables.
    """

    table: Table
    count: int
    columns: list[ShownColumn]
    depth: list[int] | None


def cut(table: Table, limit: int) -> Cut:
    """At most `limit` rows: the first ones, or the largest nodes of a tree with their ancestors.

    Of a table that lists one rank after the other, the first rows of every rank. Of a table that is to be
    brief, a third.
    """
    if table.schema.brief:
        limit = max(limit // _BRIEF, 1)
    if table.schema.kind != "tree":
        rows = _of_every_rank(table, limit)
        shown = [_shown(table, column, rows) for column in table.schema.columns]
        return Cut(table, min(limit, len(table)), shown, None)
    tree = select(table, limit)
    shown = [_shown(table, column, tree.rows) for column in shown_columns(table)]
    return Cut(table, len(tree.rows), shown, tree.depth)


def shown_columns(table: Table) -> list[Column]:
    """The columns in the order shown; a tree leaves out `node` and `parent` and begins with the name."""
    if table.schema.kind != "tree":
        return list(table.schema.columns)
    columns = [column for column in table.schema.columns if column.name not in ("node", "parent")]
    text = [column for column in columns if column.is_text]
    first = next((column for column in text if column.name == "name"), text[0] if text else columns[0])
    return sorted(columns, key=lambda column: column is not first)


def _of_every_rank(table: Table, limit: int) -> Rows:
    """Rows to show: as many of each rank; where there are more ranks than room, of those with most."""
    if len(table) <= limit or not _is_rank_by_rank(table):
        return slice(limit)
    position, leading = position_on_rank(table.array("rank")), leading_column(table)
    size = table.array(leading.name) if leading else np.zeros(len(table))
    rows = np.lexsort((-size, position))[:limit]
    if table.schema.descending:
        return rows[np.argsort(-size[rows], kind="stable")]
    return np.sort(rows)


def _is_rank_by_rank(table: Table) -> bool:
    """Whether all rows of a rank stand before those of the next."""
    if "rank" not in table.columns:
        return False
    rank = table.array("rank")
    return bool(len(rank)) and rank[0] != rank[-1] and bool((np.diff(rank) >= 0).all())


def _shown(table: Table, column: Column, rows: Rows) -> ShownColumn:
    fmt = column_format(table, column)
    cells = table.values(column.name, rows)
    return ShownColumn(fmt, cells, explained(table, column, rows, fmt.texts(cells)))


def more(result: Result, part: Cut) -> str:
    """The line under a table that was cut; empty when every row is shown."""
    if part.count == len(part.table):
        return ""
    command = result.command or f"tracelens analyze {result.analyzer} PATH"
    whole = "those of each rank" if is_across(part.table) else "all of them"
    rows = f"{part.count:,} of {len(part.table):,} rows{_which(part)}"
    names_output = any(option in command for option in (" -o ", " --report "))
    return f"{rows}; {whole}: {command}" + ("" if names_output else " --json or -o DIR for CSV")


def _which(part: Cut) -> str:
    """Which rows are shown, where they are not the first ones."""
    if part.depth is not None:
        return "; the smallest are left out"
    if not _is_rank_by_rank(part.table):
        return ""
    schema, leading = part.table.schema, leading_column(part.table)
    of_time = leading is not None and leading.unit == "ns"
    first = "first" if not schema.descending else "longest" if of_time else "largest"
    shown = next(shown for shown in part.columns if shown.column.name == "rank")
    ranks, shown_ranks = len(np.unique(part.table.array("rank"))), len(set(shown.cells))
    if shown_ranks == ranks:
        return f", the {first} of each rank"
    return f", the {first} of {shown_ranks} ranks; {ranks - shown_ranks} ranks are left out"


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
    tables = {name: typical_step(table) for name, table in readable(result).items()}
    return {name: across_ranks(table) or table for name, table in tables.items()}


def for_people(report: Report) -> Report:
    """The report with the results that say nothing gathered in one at the end, if others say something."""
    silent = [result for result in report.results if _is_silent(result)]
    if not silent or len(silent) == len(report.results):
        return report
    spoken = tuple(result for result in report.results if not _is_silent(result))
    reasons = {result.title: dict.fromkeys(reason for _, reason in skipped(result)) for result in silent}
    gathered = Result(
        "not_in_these_traces",
        "Not in these traces",
        {},
        doc="Skipped: the traces have no data for it.",
        skips=tuple(Skip(title, "; ".join(texts)) for title, texts in reasons.items()),
    )
    return replace(report, results=(*spoken, gathered))


def _is_silent(result: Result) -> bool:
    """Whether the traces have nothing for this result; one that failed is not silent about it."""
    return _says_nothing(result) and not result.failures


def _says_nothing(result: Result) -> bool:
    return bool(result.skips) and not any(len(table) for table in result.data.values())


def select(table: Table, limit: int, size: str = "") -> Tree:
    """The `limit` largest nodes, with all their ancestors.

    Node numbers are per rank when there is a `rank` column. A parent that is not in the table makes a root.

    Args:
        table: a tree.
        limit: at most so many nodes, the ancestors among them.
        size: the column by which nodes are large; by default the first one in ns (else bytes, else count).
    """
    parents = parent_rows(table)
    sizes = table.array(size).astype(np.float64) if size else _sizes(table)
    order = np.argsort(-sizes, kind="stable")
    kept = set(range(len(table))) if len(table) <= limit else _largest(order, parents, limit)
    children: dict[int, list[int]] = {}
    for row in order if len(kept) == len(table) else sorted(kept, key=lambda row: (-sizes[row], row)):
        children.setdefault(int(parents[row]), []).append(int(row))
    counts = np.bincount(parents[parents >= 0], minlength=len(table))
    tree = Tree([], [], [], [])
    # A cycle has no root to be reached from; its nodes follow as roots, so that no row is lost.
    for root in (*sorted(children.get(-1, ())), *sorted(kept)):
        _walk(root, children, kept, tree)
    tree.left_out.extend(int(counts[row]) - len(children.get(row, ())) for row in tree.rows)
    return tree


def _walk(root: int, children: dict[int, list[int]], kept: set[int], tree: Tree) -> None:
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


def _largest(order: Int, parents: Int, limit: int) -> set[int]:
    kept: set[int] = set()
    for start in order:
        chain: list[int] = []
        row = int(start)
        while row >= 0 and row not in kept and row not in chain:
            chain.append(row)
            row = int(parents[row])
        kept.update(chain[::-1][: limit - len(kept)])  # the ancestors first: a node never stands alone
        if len(kept) == limit:
            break
    return kept


def size_column(table: Table) -> str:
    """The column by which the nodes of a tree are large; empty where none is."""
    units = [(column.unit, column.name) for column in table.schema.columns]
    return next((name for size in ("ns", "bytes", "count") for unit, name in units if unit == size), "")


def _sizes(table: Table) -> Float:
    name = size_column(table)
    return table.array(name).astype(np.float64) if name else np.zeros(len(table))

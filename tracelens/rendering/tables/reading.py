"""Tables as people read them: a table for each level, and places in traces as one column."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from tracelens.arrays import Int
from tracelens.rendering.tables.values import column_format
from tracelens.table import Column, Table

_LEVELS = 12
_RANK, _AT = "_rank", "_ts_ns"
_CLOCK = "Positions are times since the trace's first event, as in Perfetto."


def by_level(name: str, table: Table) -> dict[str, Table]:
    """A table with levels as one table for each of them, any other as it is.

    The first level is what one came for; the others are brief. A level of one row repeats the whole and is
    left out where another has more; so is a column with the level's own name, which repeats the rows' names.

    Args:
        name: of the table.
        table: its columns but `level` are those of the parts.

    Returns:
        name to table, in order.
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


def typical_step(table: Table) -> Table:
    """A tree of several steps as that of the step of median duration, any other table as it is.

    Where there is room for a few rows, the steps themselves would take most of them.
    """
    if table.schema.kind != "tree" or "level" not in table.columns:
        return table
    root = root_rows(table)
    names, sizes = table.coded("name"), table.array("exclusive_ns")
    tops = np.unique(root)
    longest: dict[str, int] = {}
    for row, name, level in zip(tops, names.texts(tops), table.coded("level").texts(tops), strict=True):
        if level != "step":
            return table
        longest[name] = max(longest.get(name, 0), int(sizes[row]))
    if len(longest) < 2:
        return table
    chosen = sorted(longest, key=longest.__getitem__)[(len(longest) - 1) // 2]
    doc = f"{chosen}, of median duration among {len(longest)} steps; for another: --step."
    schema = replace(table.schema, doc=f"{table.schema.doc} {doc}".strip())
    return table.with_schema(schema).take(np.flatnonzero(names.equals(chosen)[root]))


def root_rows(table: Table) -> Int:
    """The row at the top above each row of a tree."""
    parents = parent_rows(table)
    root = np.where(parents < 0, np.arange(len(table)), parents)
    while (root != root[root]).any():
        root = root[root]
    return root


def with_places(table: Table) -> Table:
    """A table whose columns `x_rank` and `x_ts_ns` are one, `in x`: 'rank 0 at 551.890 ms'."""
    names = table.schema.names
    stems = [name.removesuffix(_AT) for name in names if name.endswith(_AT)]
    places = {stem: f"in_{stem}" for stem in stems if stem + _RANK in names}
    if not places:
        return table
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
        data[places[stem]] = _places(table, column, stem + _RANK)
    doc = f"{table.schema.doc} {_CLOCK}".strip()
    schema = replace(table.schema, columns=tuple(columns), doc=doc)
    return Table(schema, {column.name: data[column.name] for column in columns})


def _places(table: Table, time_column: Column, rank: str) -> list[str]:
    """A place of each row, "" where it is not known."""
    fmt = column_format(table, time_column)
    times = table.array(time_column.name).tolist()
    ranks = table.array(rank).tolist()
    return [
        f"rank {number} at {text} {fmt.unit}" if number >= 0 and time >= 0 else ""
        for number, time, text in zip(ranks, times, fmt.texts(times), strict=True)
    ]


def parent_rows(table: Table) -> Int:
    """The row of each node's parent, -1 where it is not in the table. Nodes are numbered on each rank."""
    node, parent = table.array("node"), table.array("parent")
    if not len(table):
        return np.zeros(0, np.int64)
    offset: Int = np.zeros(len(table), np.int64)
    if "rank" in table.columns:
        offset = table.array("rank") * (max(node.max(), parent.max()) + 1)
    keys = node + offset
    order = np.argsort(keys, kind="stable")
    parent_keys = parent + offset
    candidate_rows = order[np.minimum(np.searchsorted(keys, parent_keys, sorter=order), len(keys) - 1)]
    return np.where((parent >= 0) & (keys[candidate_rows] == parent_keys), candidate_rows, -1)

"""Tables across ranks: one row for what several ranks have, with the spread between them."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from tracelens.arrays import Bool, Float, Int, lookup, unique
from tracelens.rendering.tables.values import stem_and_suffix
from tracelens.table import Column, Table, codes, depth_first

_RATES = ("efficiency", "flops/s", "bytes/s")
"""Units of which little is bad."""

_INTENSIVE = (*_RATES, "ratio", "flops/byte")


class _Things(Struct, frozen=True):
    """What the rows of a table are about."""

    of_row: Int  # the thing of each row; no rank has two rows about one thing
    first: Int  # a row about each
    parent: Int  # of each thing of a tree, -1 at the top; all -1 of a list
    recorded: Int  # on how many ranks each could be: of a tree those that have the root above it


class _Spread(Struct, frozen=True):
    """A quantity of each thing across the ranks; NaN where no rank knows it."""

    typical: Float  # of all ranks: the median, in a tree the mean
    mean: Float  # of all ranks
    low: Float  # smallest
    high: Float  # largest
    low_row: Int  # row that has the smallest value, of those that have one
    high_row: Int  # row that has the largest


def across_ranks(table: Table) -> Table | None:
    """The table with one row for each thing (kernel, op, cause, layer, node of a tree) instead of one a rank.

    The quantity that the table leads with has its median, smallest and largest value, the worst rank (that
    with most of a time, with least of a rate) and the spread, (largest - smallest) / largest. Of the other
    quantities the median is kept, of texts that are no keys those of the worst rank.

    A rank that lacks a row has 0 of its times, sizes and counts if the schema says so, and none of its means,
    rates and efficiencies; one that lacks the root of a tree does not count below it. Of trees the mean
    takes the place of the median: children add up to their parent in means only, and what is on few ranks
    has a median of 0. What takes most in all ranks together comes first, so that what one rank alone
    has is not last.

    Returns:
        None where there is nothing to compare: one rank, or rows that stand for themselves.
    """
    schema = table.schema
    if "rank" not in table.columns or schema.kind == "entries":
        return None
    ranks = unique(table.array("rank"))
    if len(ranks) < 2 or (schema.kind != "tree" and not schema.keys):
        return None
    leading = leading_column(table)
    if schema.kind == "tree":
        things = _nodes(table)
    else:
        # Rows that agree in the key are about one thing; a rank's second such row is about another.
        group, _ = table.group(*schema.keys)
        of_row, _ = codes(group, _occurrence(table.array("rank"), group))
        _, first = np.unique(of_row, return_index=True)
        recorded = np.full(len(first), len(ranks))
        things = _Things(of_row, first, parent=np.full(len(first), -1), recorded=recorded)
    if leading is None or things is None:
        return None
    return _Comparison(table, things, len(ranks), leading).table()


def is_across(table: Table) -> bool:
    """Whether the table is one that `across_ranks` made."""
    return {"worst_rank", "spread"} <= set(table.columns)


def leading_column(table: Table) -> Column | None:
    """The quantity that the table leads with: the declared one, or the first time, or the first amount.

    Quantities of which no row knows anything are passed over; None if no other is there.
    """
    known = [
        column
        for column in table.schema.columns
        if _is_quantity(column) and not table.unknown(column.name).all()
    ]
    known.sort(key=lambda column: (column.name != table.schema.leading, column.unit != "ns"))
    return known[0] if known else None


def _is_quantity(column: Column) -> bool:
    """Numbers without a unit are names, such as those of layers, unless they are broken."""
    return column.is_number and bool(column.unit or column.dtype == "float64")


class _Comparison(Struct, frozen=True):
    """The ranks of a table side by side."""

    source: Table  # the table
    things: _Things  # that its rows are about
    ranks: int  # how many ranks it has
    leading: Column  # quantity

    def table(self) -> Table:
        schema, things = self.source.schema, self.things
        spread = self._spread(self.leading)
        low_is_bad = self.leading.unit in _RATES
        worst = spread.low_row if low_is_bad else spread.high_row

        # Keys; how many ranks have it; and below, the other short texts and numbers that are names, as the
        # worst rank has them.
        is_name = {
            column.name: not (_is_quantity(column) or column.prose or column.folded)
            and column.name not in ("rank", "node", "parent")
            for column in schema.columns
        }
        columns: list[tuple[Column, Any]] = [
            (column, _taken(self.source.columns[column.name], things.first))
            for column in schema.columns
            if is_name[column.name] and column.name in schema.keys
        ]
        present = np.bincount(things.of_row, minlength=len(things.first))
        if (present < self.ranks).any():
            columns.append((Column("ranks", "int64", "count", f"that have it, out of {self.ranks}"), present))

        # The leading quantity. Where all ranks are alike, none is the worst.
        what = self.leading.doc or self.leading.name
        for statistic, values in ((self._typical, spread.typical), ("min", spread.low), ("max", spread.high)):
            doc = f"{statistic} of the ranks: {what}"
            column = replace(self.leading, name=self._name(statistic), doc=doc)
            columns.append((column, self._as(self.leading, values)))
        rank = np.where(spread.high > spread.low, self.source.array("rank")[worst], -1)
        share = (spread.high - spread.low) / np.where(spread.high > 0, spread.high, 1)
        # Of what is below 0 on some rank there is no share.
        share = np.where(spread.low >= 0, share, -1)
        doc = f"with the {'smallest' if low_is_bad else 'largest'} value"
        columns.append((Column("worst_rank", "int64", doc=doc, absent=-1), rank))
        columns.append((Column("spread", "float64", "fraction", "(max - min) / max", absent=-1), share))

        columns += [
            (column, _taken(self.source.columns[column.name], worst))
            for column in schema.columns
            if is_name[column.name] and column.name not in schema.keys
        ]
        # The other quantities, then the sentences of the worst rank.
        for column in schema.columns:
            if column.name in schema.keys and _is_quantity(column):
                columns.append((column, self.source.array(column.name)[things.first]))
            elif _is_quantity(column) and column is not self.leading:
                doc = f"{column.doc}; {self._typical} of the ranks".removeprefix("; ")
                values = self._as(column, self._spread(column).typical)
                columns.append((replace(column, doc=doc), values))
        columns += [
            (column, _taken(self.source.columns[column.name], worst))
            for column in schema.columns
            if column.prose or column.folded
        ]

        # Things with most time in all ranks first, else in the order in which the ranks have them.
        if schema.kind == "tree":
            _, weight = np.unique(np.nan_to_num(spread.mean, nan=-1), return_inverse=True)
            order = depth_first(things.parent, weight.astype(np.int64))
        else:
            position = position_on_rank(self.source.array("rank"))
            mean_position = np.bincount(things.of_row, position) / np.bincount(things.of_row)
            keys = (mean_position, -spread.mean) if schema.descending else (things.first, mean_position)
            order = np.lexsort(keys)
        data = {column.name: _taken(values, order) for column, values in columns}
        declared = [column for column, _ in columns]
        if schema.kind == "tree":
            number = np.empty(len(order), np.int64)
            number[order] = np.arange(len(order))
            data["node"] = np.arange(len(order))
            data["parent"] = lookup(number, things.parent[order], -1)
            declared = [column for column in schema.columns if column.name in ("node", "parent")] + declared
        largest_first = ", most in total first" if schema.descending else ""
        doc = f"Across {self.ranks} ranks{largest_first}; spread: (max - min) / max."
        across = replace(
            schema,
            columns=tuple(declared),
            doc=f"{schema.doc} {doc}".strip(),
            key=(),
            leading=self._name(self._typical),
        )
        return Table(across, data)

    @property
    def _typical(self) -> str:
        return "mean" if self.source.schema.kind == "tree" else "median"

    def _name(self, statistic: str) -> str:
        stem, suffix = stem_and_suffix(self.leading)
        return "_".join(filter(None, (stem, statistic, suffix)))

    def _spread(self, column: Column) -> _Spread:
        values = self.source.array(column.name)
        intensive = column.intensive or column.unit in _INTENSIVE or not self.source.schema.absent_is_zero
        return _spread(
            values.astype(np.float64),
            ~self.source.unknown(column.name),
            self.things,
            np.zeros_like(self.things.recorded) if intensive else self.things.recorded,
            use_mean=self._typical == "mean" and not intensive,
        )

    @staticmethod
    def _as(column: Column, values: Float) -> NDArray[Any]:
        values = np.where(np.isnan(values), 0 if column.absent is None else column.absent, values)
        return np.rint(values).astype(np.int64) if column.dtype == "int64" else values


def _taken(values: Any, rows: Int) -> Any:
    if isinstance(values, list):
        return [values[row] for row in rows.tolist()]
    return values[rows] if isinstance(values, np.ndarray) else values.take(rows)


def _nodes(table: Table) -> _Things | None:
    """Nodes that agree in the key, and whose parents do, are one; None of what is no tree."""
    rank, parent = table.array("rank"), parent_rows(table)
    label = table.group(*table.schema.keys)[0]
    of_row = np.full(len(table), -1)
    above: list[Int] = []
    things = 0
    rows = np.flatnonzero(parent < 0)
    while len(rows):
        around = lookup(of_row, parent[rows], -1)
        place, _ = codes(rank[rows], around, label[rows])
        group, (group_parent, *_) = codes(
            around, label[rows], _occurrence(np.zeros(len(rows), np.int64), place)
        )
        of_row[rows] = things + group
        above.append(group_parent)
        things += len(group_parent)
        is_row = np.zeros(len(table) + 1, bool)
        is_row[rows] = True
        rows = np.flatnonzero(is_row[parent])
    if (of_row < 0).any():
        return None
    parent_of = np.concatenate(above)
    _, first, number = np.unique(of_row, return_index=True, return_counts=True)
    root = np.arange(things)
    while (inner := parent_of[root] >= 0).any():
        root = np.where(inner, parent_of[root], root)
    return _Things(of_row, first, parent_of, number[root])


def _occurrence(rank: Int, group: Int) -> Int:
    """How many rows of the same rank and group stand before each row."""
    order = np.lexsort((group, rank))
    same = np.zeros(len(order), bool)
    same[1:] = (rank[order][1:] == rank[order][:-1]) & (group[order][1:] == group[order][:-1])
    place = np.arange(len(order))
    result = np.empty(len(order), np.int64)
    result[order] = place - np.maximum.accumulate(np.where(same, 0, place))
    return result


def position_on_rank(rank: Int) -> Int:
    """How many rows of the same rank stand before each row."""
    return _occurrence(np.zeros(len(rank), np.int64), rank)


def _spread(values: Float, known: Bool, things: _Things, ranks: Int, *, use_mean: bool) -> _Spread:
    """Statistics of the `known` ones of the rows' values, for each thing.

    So many `ranks` have each thing, 0 of it where they have no row; 0 where only rows count.
    """
    size = len(things.first)
    if not known.any():
        nothing = np.full(size, np.nan)
        return _Spread(nothing, nothing, nothing, nothing, things.first, things.first)
    rows = np.flatnonzero(known)
    rows = rows[np.lexsort((values[rows], things.of_row[rows]))]
    ordered, of_row = values[rows], things.of_row[rows]
    number = np.bincount(of_row, minlength=size)
    absent = number == 0
    zeros = np.maximum(ranks - np.bincount(things.of_row, minlength=size), 0)
    total = np.maximum(number + zeros, 1)
    first = np.cumsum(number) - number
    negative = np.bincount(of_row[ordered < 0], minlength=size)

    def ranked(index: Int) -> Float:
        """The value at each thing's place `index` in ascending order, the zeros among the others."""
        behind = index >= negative + zeros
        is_zero = (index >= negative) & ~behind
        row = np.clip(first + index - np.where(behind, zeros, 0), 0, len(ordered) - 1)
        return np.where(is_zero | absent, 0.0, ordered[row])

    mean = np.bincount(of_row, ordered, minlength=size) / total
    median = (ranked((total - 1) // 2) + ranked(total // 2)) / 2
    low_row = np.where(absent, things.first, rows[np.minimum(first, len(rows) - 1)])
    high_row = np.where(absent, things.first, rows[np.maximum(first + number - 1, 0)])
    figures = (mean if use_mean else median, mean, ranked(0 * total), ranked(total - 1))
    typical, mean, low, high = (np.where(absent, np.nan, figure) for figure in figures)
    return _Spread(typical, mean, low, high, low_row, high_row)


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

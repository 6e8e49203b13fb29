"""Tables across ranks: one row for what several ranks have, with the spread between them."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from tracelens.arrays import Bool, Float, Int, distinct, first_rows, lookup, numbered, ordered, unique
from tracelens.rendering.tables.values import stem_and_suffix
from tracelens.table import Coded, Column, Table, codes, depth_first

_RATES = ("efficiency", "flops/s", "bytes/s")
"""Units of which little is bad."""

_INTENSIVE = (*_RATES, "ratio", "flops/byte")


class _Things(Struct, frozen=True):
    """What the rows of a table are about."""

    of_row: Int  # the thing of each row; no rank has two rows about one thing
    first: Int  # a row about each
    parent: Int  # of each thing of a tree, -1 at the top; all -1 of a list
    recorded: Int  # on how many ranks each could be: of a tree those that have the root above it


class _Quantity(Struct, frozen=True):
    """What the ranks have of each thing; statistics are NaN where none knows it."""

    things: _Things
    zeros: Int  # how many ranks have 0 of each thing, since they have no row
    rows: Int  # that know it: those of one thing together, in ascending order
    values: NDArray[Any]  # of these rows
    number: Int  # of these rows that each thing has
    negative: Int  # how many of these are below 0
    use_mean: bool  # of what adds up in a tree

    @classmethod
    def of(
        cls, values: NDArray[Any], known: Bool, things: _Things, ranks: Int, *, use_mean: bool
    ) -> _Quantity:
        """From the `known` ones of the rows' values.

        So many `ranks` have each thing, 0 of it where they have no row; 0 where only rows count.
        """
        size = len(things.first)
        rows = np.flatnonzero(known)
        rows = rows[ordered(things.of_row[rows], values[rows])]
        of_row, values = things.of_row[rows], values[rows]
        return cls(
            things,
            zeros=np.maximum(ranks - np.bincount(things.of_row, minlength=size), 0),
            rows=rows,
            values=values,
            number=np.bincount(of_row, minlength=size),
            negative=np.bincount(of_row[values < 0], minlength=size),
            use_mean=use_mean,
        )

    def typical(self) -> Float:
        """Of all ranks: the median, of what adds up in a tree the mean."""
        if self.use_mean:
            return self.mean()
        total = self.number + self.zeros
        return (self._ranked((total - 1) // 2) + self._ranked(total // 2)) / 2

    def mean(self) -> Float:
        """Of all ranks."""
        total = np.bincount(self.things.of_row[self.rows], self.values, len(self.number))
        return self._where_known(total / np.maximum(self.number + self.zeros, 1))

    def low(self) -> Float:
        """Smallest."""
        return self._ranked(np.zeros_like(self.number))

    def high(self) -> Float:
        """Largest."""
        return self._ranked(self.number + self.zeros - 1)

    def low_row(self) -> Int:
        """Row that has the smallest value, of those that have one."""
        return lookup(self.rows, self._position(np.zeros_like(self.number)), self.things.first)

    def high_row(self) -> Int:
        """Row that has the largest."""
        return lookup(self.rows, self._position(self.number - 1), self.things.first)

    def _ranked(self, index: Int) -> Float:
        """The value at each thing's place `index` in ascending order, the zeros among the others."""
        behind = index >= self.negative + self.zeros
        position = self._position(index - np.where(behind, self.zeros, 0))
        is_zero = (index >= self.negative) & ~behind
        return self._where_known(lookup(self.values, np.where(is_zero, -1, position), 0))

    def _position(self, index: Int) -> Int:
        """Where the value at each thing's place `index` among the known ones stands, -1 where none is."""
        return np.where(self.number > 0, np.cumsum(self.number) - self.number + index, -1)

    def _where_known(self, statistic: NDArray[Any]) -> Float:
        return np.where(self.number > 0, statistic, np.nan)


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
        group, _ = codes(*table.as_codes(*schema.keys))
        of_row, _ = codes(group, _occurrence(table.array("rank"), group))
        first = first_rows(of_row, int(of_row.max()) + 1)
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
        leading = self._quantity(self.leading)
        low, high = leading.low(), leading.high()
        low_is_bad = self.leading.unit in _RATES
        worst = leading.low_row() if low_is_bad else leading.high_row()

        # Keys; how many ranks have it; and below, the other short texts and numbers that are names, as the
        # worst rank has them.
        is_name = {
            column.name: not (_is_quantity(column) or column.prose or column.folded)
            and column.name not in ("rank", "node", "parent")
            for column in schema.columns
        }
        columns: list[tuple[Column, Any]] = [
            (column, self._taken(column, things.first))
            for column in schema.columns
            if is_name[column.name] and column.name in schema.keys
        ]
        present = np.bincount(things.of_row, minlength=len(things.first))
        if (present < self.ranks).any():
            columns.append((Column("ranks", "int64", "count", f"that have it, out of {self.ranks}"), present))

        # The leading quantity. Where all ranks are alike, none is the worst.
        what = self.leading.doc or self.leading.name
        figures = {self._typical: leading.typical(), "min": low, "max": high}
        for statistic, values in figures.items():
            doc = f"{statistic} of the ranks: {what}"
            column = replace(self.leading, name=self._name(statistic), doc=doc)
            columns.append((column, self._as(self.leading, values)))
        rank = np.where(high > low, self.source.array("rank")[worst], -1)
        share = (high - low) / np.where(high > 0, high, 1)
        # Of what is below 0 on some rank there is no share.
        share = np.where(low >= 0, share, -1)
        doc = f"with the {'smallest' if low_is_bad else 'largest'} value"
        columns.append((Column("worst_rank", "int64", doc=doc, absent=-1), rank))
        columns.append((Column("spread", "float64", "fraction", "(max - min) / max", absent=-1), share))

        columns += [
            (column, self._taken(column, worst))
            for column in schema.columns
            if is_name[column.name] and column.name not in schema.keys
        ]
        # The other quantities, then the sentences of the worst rank.
        for column in schema.columns:
            if column.name in schema.keys and _is_quantity(column):
                columns.append((column, self.source.array(column.name)[things.first]))
            elif _is_quantity(column) and column is not self.leading:
                doc = f"{column.doc}; {self._typical} of the ranks".removeprefix("; ")
                typical = self._quantity(column).typical()
                columns.append((replace(column, doc=doc), self._as(column, typical)))
        columns += [
            (column, self._taken(column, worst)) for column in schema.columns if column.prose or column.folded
        ]

        # Things with most time in all ranks first, else in the order in which the ranks have them.
        if schema.kind == "tree":
            _, weight = numbered(np.nan_to_num(leading.mean(), nan=-1))
            order = depth_first(things.parent, weight)
        else:
            position = position_on_rank(self.source.array("rank"))
            mean_position = np.bincount(things.of_row, position) / np.bincount(things.of_row)
            keys = (mean_position, -leading.mean()) if schema.descending else (things.first, mean_position)
            order = np.lexsort(keys)
        data = {column.name: _taken(values, order) for column, values in columns}
        # Texts that are held as a list become a dictionary in order of their first rows.
        data |= {
            name: Coded.picked(*values)
            for name, values in data.items()
            if isinstance(self.source.columns.get(name), list)
        }
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

    def _quantity(self, column: Column) -> _Quantity:
        intensive = column.intensive or column.unit in _INTENSIVE or not self.source.schema.absent_is_zero
        return _Quantity.of(
            self.source.array(column.name),
            ~self.source.unknown(column.name),
            self.things,
            np.zeros_like(self.things.recorded) if intensive else self.things.recorded,
            use_mean=self._typical == "mean" and not intensive,
        )

    def _taken(self, column: Column, rows: Int) -> Any:
        values = self.source.coded(column.name) if column.is_text else self.source.array(column.name)
        return _taken(values, rows)

    @staticmethod
    def _as(column: Column, values: Float) -> NDArray[Any]:
        values = np.where(np.isnan(values), 0 if column.absent is None else column.absent, values)
        return np.rint(values).astype(np.int64) if column.dtype == "int64" else values


def _taken(values: Any, rows: Int) -> Any:
    return values[rows] if isinstance(values, np.ndarray) else values.take(rows)


def _nodes(table: Table) -> _Things | None:
    """Nodes that agree in the key, and whose parents do, are one; None of what is no tree."""
    rank, parent = table.array("rank"), parent_rows(table)
    label, _ = codes(*table.as_codes(*table.schema.keys))
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
    first, number = first_rows(of_row, things), np.bincount(of_row, minlength=things)
    root = np.arange(things)
    while (inner := parent_of[root] >= 0).any():
        root = np.where(inner, parent_of[root], root)
    return _Things(of_row, first, parent_of, number[root])


def _occurrence(rank: Int, group: Int) -> Int:
    """How many rows of the same rank and group stand before each row."""
    order = ordered(rank, group)
    same = np.zeros(len(order), bool)
    same[1:] = (rank[order][1:] == rank[order][:-1]) & (group[order][1:] == group[order][:-1])
    place = np.arange(len(order))
    result = np.empty(len(order), np.int64)
    result[order] = place - np.maximum.accumulate(np.where(same, 0, place))
    return result


def position_on_rank(rank: Int) -> Int:
    """How many rows of the same rank stand before each row."""
    return _occurrence(np.zeros(len(rank), np.int64), rank)


def parent_rows(table: Table) -> Int:
    """The row of each node's parent, -1 where it is not in the table. Nodes are numbered on each rank."""
    node, parent = table.array("node"), table.array("parent")
    if not len(table):
        return np.zeros(0, np.int64)
    offset: Int = np.zeros(len(table), np.int64)
    if "rank" in table.columns:
        offset = table.array("rank") * (max(node.max(), parent.max()) + 1)
    keys = np.concatenate((node + offset, np.maximum(parent, 0) + offset))
    used, key = distinct(keys, int(keys.max()) + 1)
    row = np.full(len(used), -1)
    row[key[: len(node)][::-1]] = np.arange(len(node))[::-1]  # of two rows of one node the first counts
    return np.where(parent >= 0, row[key[len(node) :]], -1)

"""Tables across ranks: one row for what several ranks have, with the spread between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tracelens.arrays import Bool, Float, Int, lookup
from tracelens.rendering.tables.reading import parent_rows
from tracelens.rendering.tables.values import stem_and_suffix, unknown
from tracelens.table import Column, Table, codes, depth_first

_RATES = ("efficiency", "flops/s", "bytes/s")
"""Units of which little is bad."""

_INTENSIVE = (*_RATES, "ratio", "flops/byte")
_ABSENT = -1


class _Things(NamedTuple):
    """What the rows of a table are about.

    Attributes:
        of_row: the thing of each row; no rank has two rows about one thing.
        first: a row about each.
        parent: of each thing of a tree, -1 at the top; all -1 of a list.
        recorded: on how many ranks each could be: of a tree those that have the root above it.
    """

    of_row: Int
    first: Int
    parent: Int
    recorded: Int


class _Spread(NamedTuple):
    """A quantity of each thing across the ranks; -1 where no rank knows it.

    Attributes:
        typical: of all ranks: the median, in a tree the mean.
        mean: of all ranks.
        low: smallest.
        high: largest.
        low_row: row that has the smallest value, of those that have one.
        high_row: row that has the largest.
    """

    typical: Float
    mean: Float
    low: Float
    high: Float
    low_row: Int
    high_row: Int


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
    ranks = np.unique(table.array("rank"))
    if len(ranks) < 2 or (schema.kind != "tree" and not schema.keys):
        return None
    leading = leading_column(table)
    things = _nodes(table) if schema.kind == "tree" else _rows(table)
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
        if _is_quantity(column) and not unknown(column, table.array(column.name)).all()
    ]
    known.sort(key=lambda column: (column.name != table.schema.leading, column.unit != "ns"))
    return known[0] if known else None


def _is_quantity(column: Column) -> bool:
    """Numbers without a unit are names, such as those of layers, unless they are broken."""
    return column.is_number and bool(column.unit or column.dtype == "float64")


@dataclass(frozen=True)
class _Comparison:
    """The ranks of a table side by side.

    Attributes:
        source: the table.
        things: that its rows are about.
        ranks: how many ranks it has.
        leading: quantity.
    """

    source: Table
    things: _Things
    ranks: int
    leading: Column

    def table(self) -> Table:
        leading = self._spread(self.leading)
        low_is_bad = self.leading.unit in _RATES
        worst = leading.low_row if low_is_bad else leading.high_row
        present = np.bincount(self.things.of_row, minlength=len(self.things.first))
        order = self._order(leading)
        names = [*self._names(worst)]
        columns = [(column, values) for column, values in names if column.name in self.source.schema.keys]
        if (present < self.ranks).any():
            doc = f"that have it, out of {self.ranks}"
            columns.append((Column("ranks", "int64", "count", doc), present))
        columns += self._leading(leading, worst)
        columns += [
            (column, values) for column, values in names if column.name not in self.source.schema.keys
        ]
        columns += self._others(worst)
        data = {column.name: _taken(values, order) for column, values in columns}
        if self.source.schema.kind == "tree":
            data |= self._numbered(order)
        declared = [*self._node_columns(), *(column for column, _ in columns)]
        largest_first = ", most in total first" if self.source.schema.descending else ""
        doc = f"Across {self.ranks} ranks{largest_first}; spread: (max - min) / max."
        schema = replace(
            self.source.schema,
            columns=tuple(declared),
            doc=f"{self.source.schema.doc} {doc}".strip(),
            key=(),
            leading=self._name(self._typical),
        )
        return Table(schema, data)

    @property
    def _typical(self) -> str:
        return "mean" if self.source.schema.kind == "tree" else "median"

    def _name(self, statistic: str) -> str:
        stem, suffix = stem_and_suffix(self.leading)
        return "_".join(filter(None, (stem, statistic, suffix)))

    def _leading(self, spread: _Spread, worst: Int) -> Iterator[tuple[Column, Any]]:
        """The columns of the leading quantity."""
        what = self.leading.doc or self.leading.name
        for statistic, values in ((self._typical, spread.typical), ("min", spread.low), ("max", spread.high)):
            doc = f"{statistic} of the ranks: {what}"
            yield (
                replace(self.leading, name=self._name(statistic), doc=doc),
                self._as(self.leading, values),
            )
        # Where all ranks are alike, none is the worst.
        differs = spread.high > spread.low
        rank = np.where(differs, self.source.array("rank")[worst], _ABSENT)
        share = (spread.high - spread.low) / np.where(spread.high > 0, spread.high, 1)
        share = np.where(spread.low < 0, _ABSENT, share)
        yield Column("worst_rank", "int64", doc=f"with the {self._worst} value"), rank
        yield Column("spread", "float64", "fraction", "(max - min) / max"), share

    def _others(self, worst: Int) -> Iterator[tuple[Column, Any]]:
        """The other quantities, then the sentences of the worst rank."""
        schema = self.source.schema
        for column in schema.columns:
            if column.name in schema.keys and _is_quantity(column):
                yield column, self.source.array(column.name)[self.things.first]
            elif _is_quantity(column) and column is not self.leading:
                doc = f"{column.doc}; {self._typical} of the ranks".removeprefix("; ")
                yield replace(column, doc=doc), self._as(column, self._spread(column).typical)
        for column in schema.columns:
            if column.prose or column.folded:
                yield column, _taken(self.source.columns[column.name], worst)

    @property
    def _worst(self) -> str:
        return "smallest" if self.leading.unit in _RATES else "largest"

    def _names(self, worst: Int) -> Iterator[tuple[Column, Any]]:
        """Keys, and the other short texts and numbers that are names, as the worst rank has them."""
        for column in self.source.schema.columns:
            is_name = not (_is_quantity(column) or column.prose or column.folded)
            if is_name and column.name not in ("rank", "node", "parent"):
                rows = self.things.first if column.name in self.source.schema.keys else worst
                yield column, _taken(self.source.columns[column.name], rows)

    def _spread(self, column: Column) -> _Spread:
        values = self.source.array(column.name)
        intensive = column.intensive or column.unit in _INTENSIVE or not self.source.schema.absent_is_zero
        return _spread(
            values.astype(np.float64),
            ~unknown(column, values),
            self.things,
            np.zeros_like(self.things.recorded) if intensive else self.things.recorded,
            use_mean=self._typical == "mean" and not intensive,
        )

    @staticmethod
    def _as(column: Column, values: Float) -> NDArray[Any]:
        return np.rint(values).astype(np.int64) if column.dtype == "int64" else values

    def _order(self, leading: _Spread) -> Int:
        """Things with most time in all ranks first, else in the order in which the ranks have them."""
        if self.source.schema.kind == "tree":
            _, weight = np.unique(leading.mean, return_inverse=True)
            return depth_first(self.things.parent, weight.astype(np.int64))
        position = position_on_rank(self.source.array("rank"))
        place = np.bincount(self.things.of_row, position) / np.bincount(self.things.of_row)
        if self.source.schema.descending:
            return np.lexsort((place, -leading.mean))
        return np.lexsort((self.things.first, place))

    def _node_columns(self) -> list[Column]:
        schema = self.source.schema
        return [c for c in schema.columns if schema.kind == "tree" and c.name in ("node", "parent")]

    def _numbered(self, order: Int) -> dict[str, Int]:
        number = np.empty(len(order), np.int64)
        number[order] = np.arange(len(order))
        return {"node": np.arange(len(order)), "parent": lookup(number, self.things.parent[order], -1)}


def _taken(values: Any, rows: Int) -> Any:
    if isinstance(values, list):
        return [values[row] for row in rows.tolist()]
    return values[rows] if isinstance(values, np.ndarray) else values.take(rows)


def _rows(table: Table) -> _Things:
    """Rows that agree in the key are about one thing; a rank's second such row is about another."""
    rank = table.array("rank")
    group, _ = table.group(*table.schema.keys)
    of_row, _ = codes(group, _occurrence(rank, group))
    _, first = np.unique(of_row, return_index=True)
    recorded = np.full(len(first), len(np.unique(rank)))
    return _Things(of_row, first, np.full(len(first), -1), recorded)


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
    """Statistics of `values` for each thing.

    Args:
        values: of the rows.
        known: which of them count.
        things: of the rows.
        ranks: as many have each thing, 0 of it where they have no row; 0 where only rows count.
        use_mean: instead of the median.
    """
    size = len(things.first)
    if not known.any():
        nothing = np.full(size, float(_ABSENT))
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
    typical, mean, low, high = (np.where(absent, float(_ABSENT), figure) for figure in figures)
    return _Spread(typical, mean, low, high, low_row, high_row)

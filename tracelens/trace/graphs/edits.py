"""Pairs of nodes that hold however a replay came to differ from its template.

A replay is its template after edits: nodes inserted, deleted, renamed, swapped with the next. Each edit has a
price, the logarithm of how improbable it is, and the cheapest edits are the likeliest. A pair is certain
where every explanation without it costs at least MARGIN more. A deleted node, say, may also be one whose
neighbour took its place and its name: two edits and a coincidence of names. Prices follow from what the
replay shows: a first pass counts its edits, and the second judges by them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tracelens.arrays import Bool, Float, Int

NAT = 100
"""Prices are integers: hundredths of a nat."""

MARGIN, EDGE_MARGIN, EDGE = 6 * NAT, 10 * NAT, 3
"""A pair counts where it is e^6 times as likely as anything else that its node may be. Up to EDGE nodes from
an edit it takes e^10: there the same kernels may have come about by another one. Elsewhere it would take two,
of which the second undoes what the first did to the names."""

FREE, LIKELY, NEVER, RENAMED, REGRIDDED = 0, NAT, 1 << 28, -1, -2
"""Prices of pairs: of one kernel; of nodes that are the same in all likelihood; of a kernel and a copy.
RENAMED and REGRIDDED are no prices: different kernels, and one kernel with another grid."""

PRIOR = 100
"""Before it is looked at, a graph has as many edits as if one in so many nodes had one of each kind."""

BAND = 96
"""By so many nodes edits may shift a node, beyond the difference in length."""

MOST_CELLS = 60_000_000
"""Pairs of nodes that are compared at most, a matter of memory: four bytes each."""

Price = NDArray[np.int32]


class Codes(NamedTuple):
    """Nodes of both sides as numbers of what is distinct in them.

    Attributes:
        row: of each node of the template.
        column: of each node of the replay.
        price: of each pair of a row's and a column's number.
        share: of each column's number, the share of the template's nodes that it may be.
    """

    row: Int
    column: Int
    price: Price
    share: Float


class Rates(NamedTuple):
    """How often a node is edited.

    Attributes:
        own: share of inserted and renamed nodes that have the name of a node of the template.
        regridded: share of pairs whose grids differ.
    """

    deleted: float = 0.02
    inserted: float = 0.02
    renamed: float = 0.02
    swapped: float = 0.02
    own: float = 0.5
    regridded: float = 0.02


class _Best(NamedTuple):
    """The likeliest explanation of each node of the replay.

    Attributes:
        node: of the template, -1 for an insertion.
        same: whether it is that node, and not renamed.
        margin: by how much all others cost more.
    """

    node: Int
    same: Bool
    margin: Int


def certain(codes: Codes) -> Int:
    """Node of the template for each node of the replay, -1 where none is certain."""
    nothing = np.full(len(codes.column), -1)
    half = BAND + abs(len(codes.row) - len(codes.column))
    if (len(codes.row) + 1) * min(len(codes.column) + 1, 2 * half + 1) > MOST_CELLS:
        return nothing
    best = _Band(codes, half, _rates(codes, _Band(codes, half, Rates()).best())).best()
    margin = np.where(_edges(best, len(codes.row)), EDGE_MARGIN, MARGIN)
    return np.where(best.same & (best.margin >= margin), best.node, nothing)


def _edges(best: _Best, rows: int) -> Bool:
    """The nodes near an edit."""
    node = np.concatenate([[-1], np.where(best.same, best.node, -2), [rows]])
    breaks = np.diff(node) != 1  # before each node, and behind the last
    edited = breaks[1:] | breaks[:-1]
    near: Bool = np.convolve(edited, np.ones(2 * EDGE - 1))[EDGE - 1 :][: len(edited)] > 0
    return near


def _rates(codes: Codes, best: _Best) -> Rates:
    """Rates of the edits in the likeliest explanation."""
    rows, columns = len(codes.row) + PRIOR, len(codes.column) + PRIOR
    stray, inserted = ~best.same, best.node < 0
    paired = np.flatnonzero(best.same)
    other_grid = codes.price[codes.row[best.node[paired]], codes.column[paired]] == REGRIDDED
    return Rates(
        deleted=(max(len(codes.row) - int((~inserted).sum()), 0) + 1) / rows,
        inserted=(int(inserted.sum()) + 1) / columns,
        renamed=(int((stray & ~inserted).sum()) + 1) / rows,
        swapped=(int((best.same[1:] & best.same[:-1] & (np.diff(best.node) == -1)).sum()) + 1) / rows,
        own=(int((codes.share[codes.column[stray]] > 0).sum()) + 1) / (int(stray.sum()) + 2),
        regridded=(int(other_grid.sum()) + 1) / (len(paired) + PRIOR),
    )


def _price(chance: Float | float) -> Price:
    price: Price = np.rint(-NAT * np.log(chance)).astype(np.int32)
    return price


class _Band:
    """Prices of explanations of two sequences, of pairs within a band around the diagonal.

    The cheapest way from the beginning to each pair of places (row, column) and from there to the end: their
    sum is what an explanation costs that passes there.
    """

    def __init__(self, codes: Codes, half: int, rates: Rates) -> None:
        self._codes, self._rows, self._columns = codes, len(codes.row), len(codes.column)
        self._width = min(self._columns + 1, 2 * half + 1)
        middle = np.arange(self._rows + 1) * self._columns // max(self._rows, 1)
        self._low: list[int] = np.clip(middle - half, 0, self._columns + 1 - self._width).tolist()
        share = codes.share[codes.column]
        # A name that the template lacks costs every explanation the same, and so nothing.
        surprise = np.where(share > 0, _price(np.clip(rates.own * share, 1e-9, 1.0)), 0)
        self._insert, self._rename = surprise + _price(rates.inserted), surprise + _price(rates.renamed)
        self._delete, self._swap = int(_price(rates.deleted)), int(_price(rates.swapped))
        self._upto = np.concatenate([[0], np.cumsum(self._insert)]).astype(np.int32)
        self._regrid = surprise + _price(rates.regridded)

    def best(self) -> _Best:
        """The likeliest explanation of each node of the replay."""
        ahead = self._ahead()
        tally = _Tally(self._columns)
        line = np.full(self._columns + 2, NEVER, dtype=np.int32)  # from (row, column) to the end
        beyond, behind = line.copy(), line[:0]  # the same of the row before the last
        for row in range(self._rows, -1, -1):
            begin, end = self._low[row], self._low[row] + self._width
            last = min(end, self._columns)
            here = ahead[row, : last - begin].astype(np.int64)
            new = line[begin:end] + self._delete
            if row == self._rows:
                new[:] = NEVER
                new[-1] = 0
            else:
                through = line[begin + 1 : last + 1] + self._pairs(row, begin, last)
                np.minimum(new[: last - begin], through, out=new[: last - begin])
                tally.enter(slice(begin, last), row, here + through, self._is_same(row, begin, last))
                line[end : self._low[row + 1] + self._width] = NEVER
            if row < self._rows - 1:
                crossed = self._swapped(row, begin, min(end, self._columns - 1))
                through = beyond[crossed + 2] + self._swap
                new[crossed - begin] = np.minimum(new[crossed - begin], through)
                total = here[crossed - begin] + through
                tally.enter(crossed, row + 1, total, True)
                tally.enter(crossed + 1, row, total, True)
            beyond[:] = NEVER
            if row < self._rows:
                former = self._low[row + 1]
                beyond[former : former + self._width] = behind
            # Inserting the columns [column, k) costs upto[k] - upto[column].
            span = self._upto[begin:end]
            behind = np.minimum(np.minimum.accumulate((new + span)[::-1])[::-1] - span, NEVER)
            line[begin:end] = behind
            tally.enter_gap(slice(begin, last), here + self._insert[begin:last] + line[begin + 1 : last + 1])
        return tally.best()

    def _ahead(self) -> Price:
        """Price from the beginning to each pair of places in the band."""
        ahead = np.empty((self._rows + 1, self._width), dtype=np.int32)
        line = np.full(self._columns + 2, NEVER, dtype=np.int32)
        for row in range(self._rows + 1):
            begin, end = self._low[row], self._low[row] + self._width
            new = line[begin:end] + self._delete
            if row:
                first = max(begin - 1, 0)
                through = line[first : end - 1] + self._pairs(row - 1, first, end - 1)
                np.minimum(new[first + 1 - begin :], through, out=new[first + 1 - begin :])
                line[self._low[row - 1] : begin] = NEVER
            else:
                new[:] = NEVER
                new[0] = 0
            if row > 1:
                former = self._low[row - 2]
                crossed = self._swapped(row - 2, max(begin - 2, former), min(end - 2, former + self._width))
                behind = crossed + 2 - begin
                new[behind] = np.minimum(new[behind], ahead[row - 2, crossed - former] + self._swap)
            span = self._upto[begin:end]
            new = np.minimum(np.minimum.accumulate(new - span) + span, NEVER)
            line[begin:end] = ahead[row] = new
        return ahead

    def _pairs(self, row: int, begin: int, end: int) -> Price:
        """Prices of the pairs of a row and the columns [begin, end)."""
        price = self._codes.price[self._codes.row[row]][self._codes.column[begin:end]]
        price = np.where(price == RENAMED, self._rename[begin:end], price)
        return np.where(price == REGRIDDED, self._regrid[begin:end], price).astype(np.int32)

    def _is_same(self, row: int, begin: int, end: int) -> Bool:
        same: Bool = self._codes.price[self._codes.row[row]][self._codes.column[begin:end]] != RENAMED
        return same

    def _swapped(self, row: int, begin: int, end: int) -> Int:
        """Those of the columns [begin, end) that are the row behind, and the row is the column behind."""
        own, following = (self._codes.price[code] for code in self._codes.row[row : row + 2])
        column, behind = self._codes.column[begin:end], self._codes.column[begin + 1 : end + 1]
        is_swapped = (following[column] == FREE) & (own[behind] == FREE) & (own[column] == RENAMED)
        return begin + np.flatnonzero(is_swapped)


class _Tally:
    """The two cheapest explanations of each node of the replay that differ in the template's node."""

    def __init__(self, columns: int) -> None:
        self._total = np.full(columns, 4 * NEVER, dtype=np.int64)
        self._second, self._gap = self._total.copy(), self._total.copy()
        self._node, self._same = np.full(columns, -1), np.zeros(columns, dtype=bool)

    def enter(self, part: slice | Int, row: int, total: Int, same: Bool | bool) -> None:
        """Explanations in which nodes are a row of the template."""
        best, node = self._total[part], self._node[part]
        better = total < best
        second = np.minimum(self._second[part], np.maximum(best, total))
        self._second[part] = np.where(node != row, second, self._second[part])
        self._total[part] = np.where(better, total, best)
        self._node[part] = np.where(better, row, node)
        self._same[part] = np.where(better, same, self._same[part])

    def enter_gap(self, part: slice, total: Int) -> None:
        """Explanations in which nodes are inserted."""
        self._gap[part] = np.minimum(self._gap[part], total)

    def best(self) -> _Best:
        """The cheapest, of which an insertion is one."""
        is_gap = self._gap <= self._total
        margin = np.where(is_gap, 0, np.minimum(self._second, self._gap) - self._total)
        return _Best(np.where(is_gap, -1, self._node), self._same & ~is_gap, margin)

"""Which node of a template each node of a replay is.

Two nodes are the same by name and grid; by name; as GEMMs, where libraries choose the kernel; or, where the
call has no name, by the ops that are known to launch this kernel. Where a replay has the template's nodes one
by one, that is all. Elsewhere only pairs count that hold however the two came to differ: a node left
unattributed costs coverage, a wrong one the trust in all of them.

A replay is its template after edits: nodes inserted, deleted, renamed, swapped with the next. Each edit has a
price, the logarithm of how improbable it is, and the cheapest edits are the likeliest. A pair is certain
where every explanation without it costs at least MARGIN more. A deleted node, say, may also be one whose
neighbour took its place and its name: two edits and a coincidence of names. Prices follow from what the
replay shows: a first pass counts its edits, and the second judges by them.

A graph's branches run beside each other on streams of the driver's choice, so that order of start is not the
order in which the program launched them. Each stream keeps that order, and a branch is a contiguous piece of
the program: following the template, its next node is the next one of some stream.

Captures may lack kernel names, as with CUDA. An op with the same arguments launches the same kernels. Paired
one by one, calls of equal ops therefore have equal kernels, but for places where the replay differs; those
stand out against the kernel that most calls have.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tracelens.arrays import Bool, Float, Int, unique
from tracelens.trace.classify import classify_kernels
from tracelens.trace.graphs.nodes import KERNEL, Content, Nodes, Replay, Template, op_texts

SAME, SAME_NAME, SAME_GEMM, PLAUSIBLE, POSSIBLE = 8, 6, 4, 2, 1
"""How surely two nodes are the same: by name and grid; by name; as GEMMs, where libraries choose the kernel;
by an op that is known to launch this kernel, where the call has no name; by their order alone."""
LEAST_PLAUSIBLE = 0.95
"""Share of calls without names that must be plausible where a capture has as many nodes as a replay."""
MOST_MERGED = 60_000_000
"""Pairs of nodes that are compared at most to follow several streams, a matter of memory."""
Known = Mapping[str, frozenset[str]]
"""Kernel to the ops that are known to launch it."""
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

MOST_DISORDER = 0.15
"""By how much of the graph its nodes may run earlier or later than the program launched them, on average."""
LOOKAHEAD = 3
"""Nodes of a stream that may stand before the one that is looked for and have no partner."""

CONSISTENT = 0.9
"""Share of nodes whose kernel is that of most calls of the same op, and of GEMMs that run a GEMM kernel."""
LEAST_UNNAMED = 4
"""So few nodes without names may be of any graph."""
MAJORITY = 2 / 3
"""Share of an op's calls that name its kernel."""
_GEMM_OP = re.compile(r"aten::(?:mm|addmm|bmm|baddbmm|_scaled_mm|_grouped_mm|_scaled_grouped_mm)$")
_GEMM_CLASSES = ("gemm", "grouped_gemm")

_NESTED = re.compile(r"\d+")


class Alignment(NamedTuple):
    """Node of the template and weight of the pair for each node of the replay; -1 where none is sure."""

    node: Int
    weight: Int
    score: float  # weight of the best alignment, as a share of what full agreement would weigh
    is_whole: bool = False  # whether both have the same number of nodes, and nearly all of them are paired


class Codes(NamedTuple):
    """Nodes of both sides as numbers of what is distinct in them."""

    row: Int  # of each node of the template
    column: Int  # of each node of the replay
    price: Price  # of each pair of a row's and a column's number
    share: Float  # of each column's number, the share of the template's nodes that it may be


class Rates(NamedTuple):
    """How often a node is edited."""

    deleted: float = 0.02
    inserted: float = 0.02
    renamed: float = 0.02
    swapped: float = 0.02
    own: float = 0.5  # share of inserted and renamed nodes that have the name of a node of the template
    regridded: float = 0.02  # share of pairs whose grids differ


class _Best(NamedTuple):
    """The likeliest explanation of each node of the replay."""

    node: Int  # of the template, -1 for an insertion
    same: Bool  # whether it is that node, and not renamed
    margin: Int  # by how much all others cost more


def align(template: Nodes, graph: Replay, known: Known) -> Alignment:
    """Align a replay with a template.

    On several streams the order of the program is found by the names of the kernels, and not without.
    """
    replay, count = graph.nodes, len(graph.nodes)
    nothing = Alignment(np.full(count, -1), np.zeros(count, dtype=np.int64), 0.0)
    is_single = len(unique(graph.stream)) == 1
    if not len(template) or not (is_single or any(template.name)):
        return nothing
    weights = Weights(template, replay, known)
    if not any(template.name):
        paired = _one_by_one(weights.diagonal())
        return nothing if paired is None else _alignment(template, *paired)
    paired = _one_by_one(weights.diagonal()) if is_single else None
    unsure = np.zeros(count, dtype=bool)
    if paired is None:
        order = np.arange(count)
        if not is_single:
            if len(template) * count > MOST_MERGED:
                return nothing
            order, unsure = merged(weights.matrix(), graph.stream, graph.start, graph.end)
        in_order = weights.of(order)
        paired = _one_by_one(in_order.diagonal())
        if paired is None:
            node = certain(in_order.codes())
            paired = node, np.where(node >= 0, in_order.pairs(np.maximum(node, 0)), 0)
        node, pair_weight = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
        node[order], pair_weight[order] = paired
        paired = node, pair_weight
    node, pair_weight = paired
    node[unsure], pair_weight[unsure] = -1, 0
    return _alignment(template, node, pair_weight)


def _alignment(template: Nodes, node: Int, weight: Int) -> Alignment:
    score = float(weight.sum()) / (SAME * max(len(template), len(node)))
    whole = len(template) == len(node) and float((node >= 0).mean()) >= LEAST_PLAUSIBLE
    return Alignment(node, weight, score, whole)


def _one_by_one(weight: Int) -> tuple[Int, Int] | None:
    """Node and weight of each pair where a replay has the nodes of the template one by one, None elsewhere.

    Of calls without names a few may be implausible: ops that were seen to launch a kernel need not be all.
    """
    fits = weight > 0
    if not len(weight) or not (fits.all() or (weight.max() <= PLAUSIBLE and fits.mean() >= LEAST_PLAUSIBLE)):
        return None
    return np.where(fits, np.arange(len(weight)), -1), weight


class Weights:
    """Weight of each pair (template node, replay node), 0 where they cannot be the same."""

    def __init__(self, template: Nodes, replay: Nodes, known: Known) -> None:
        rows, self._row = _distinct(template)
        columns, self._column = _distinct(replay)
        self._kind, self._other_kind = template.kind, replay.kind
        self._is_kernel = np.logical_and.outer(
            *([node[0] == KERNEL for node in side] for side in (rows, columns))
        )
        # Another kernel for the same GEMM is one that the other side does not have elsewhere.
        own_gemms = _gemms({node[1] for node in rows} - {node[1] for node in columns})
        other_gemms = _gemms({node[1] for node in columns} - {node[1] for node in rows})

        @cache
        def weight(own: tuple[int, str, str], other: tuple[int, str, str]) -> int:
            (kind, name, op), (other_kind, other_name, _) = own, other
            if kind != other_kind:
                return 0
            if kind != KERNEL:
                return SAME_NAME
            if not name:
                return POSSIBLE if other_name not in known else PLAUSIBLE * (op in known[other_name])
            if same_kernel(name, other_name):
                return SAME
            return SAME_GEMM if name in own_gemms and other_name in other_gemms else 0

        weights = [[weight(own[:3], other[:3]) for other in columns] for own in rows]
        self._table = np.array(weights, dtype=np.int8).reshape(len(rows), len(columns))
        blocks, other_blocks = (np.array([node[3] for node in side]) for side in (rows, columns))
        known_grids = np.logical_and.outer(blocks >= 0, other_blocks >= 0)
        self._is_other_grid = (self._table == SAME) & known_grids & np.not_equal.outer(blocks, other_blocks)
        self._table[self._is_other_grid] = SAME_NAME

    def diagonal(self) -> Int:
        """Weight of each node with the one at its place; none where kinds or numbers of nodes differ."""
        same = np.array_equal(self._kind, self._other_kind)
        return self.pairs(np.arange(len(self._kind))) if same else np.zeros(0, dtype=np.int64)

    def of(self, order: Int) -> Weights:
        """Weights with the replay in another order."""
        other = copy(self)
        other._column, other._other_kind = self._column[order], self._other_kind[order]
        return other

    def pairs(self, node: Int) -> Int:
        """Weight of each node of the replay with one of the template."""
        return self._table[self._row[node], self._column].astype(np.int64)

    def matrix(self) -> NDArray[np.int8]:
        """Weight of all pairs."""
        return self._table[np.ix_(self._row, self._column)]

    def codes(self) -> Codes:
        """Prices of the pairs: another name, of two kernels, takes a renaming."""
        price = np.where(self._table >= SAME_NAME, FREE, np.where(self._table > 0, LIKELY, NEVER))
        price[self._is_other_grid] = REGRIDDED
        price[self._is_kernel & (self._table == 0)] = RENAMED
        count = np.bincount(self._row, minlength=len(price))
        is_same = (self._table > 0) & ~self._is_other_grid
        share = (count[:, None] * is_same).sum(axis=0) / max(len(self._row), 1)
        return Codes(self._row, self._column, price.astype(np.int32), share)


def _gemms(names: set[str]) -> set[str]:
    listed = sorted(names - {""})
    return {
        name
        for name, kernel_class in zip(listed, classify_kernels(listed), strict=True)
        if kernel_class == "gemm"
    }


def _distinct(nodes: Nodes) -> tuple[list[tuple[int, str, str, int]], Int]:
    """The distinct nodes, as kind, name, op and blocks, and which of them each is."""
    codes: dict[tuple[int, str, str, int], int] = {}
    # The op matters only where the kernel has no name.
    keys = (
        (kind, name, "" if name else op, blocks)
        for kind, name, op, blocks in zip(
            nodes.kind.tolist(), nodes.name, nodes.op, nodes.blocks.tolist(), strict=True
        )
    )
    code = [codes.setdefault(key, len(codes)) for key in keys]
    return list(codes), np.array(code, dtype=np.int64)


def same_kernel(name: str, other: str) -> bool:
    """Whether two names are of one kernel; of one that is mangled only the function is compared."""
    if name == other:
        return True
    if name.startswith("_Z") == other.startswith("_Z"):
        return False
    return function(name) == function(other)


def function(name: str) -> str:
    """`space::function` of a kernel, without return type, template and call arguments."""
    if name.startswith("_Z"):
        text, parts = name[2:].removeprefix("L").removeprefix("N"), []
        while match := _NESTED.match(text):
            end = match.end() + int(match[0])
            parts.append(text[match.end() : end])
            text = text[end:]
        return "::".join("(anonymous namespace)" if part.startswith("_GLOBAL__N") else part for part in parts)
    bare = re.split(r"[<(]", name.replace("(anonymous namespace)", "\x00"), maxsplit=1)[0]
    return bare.rpartition(" ")[2].replace("\x00", "(anonymous namespace)")


def ops_of_kernels(calls: Iterable[Nodes]) -> Known:
    """Kernel to the ops that launch it, from calls of which both are recorded."""
    ops: dict[str, set[str]] = {}
    for nodes in calls:
        for op, name in zip(nodes.op, nodes.name, strict=True):
            if op and name:
                ops.setdefault(name, set()).add(op)
    return {name: frozenset(names) for name, names in ops.items()}


def certain(codes: Codes) -> Int:
    """Node of the template for each node of the replay, -1 where none is certain."""
    nothing = np.full(len(codes.column), -1)
    half = BAND + abs(len(codes.row) - len(codes.column))
    if (len(codes.row) + 1) * min(len(codes.column) + 1, 2 * half + 1) > MOST_CELLS:
        return nothing
    # A first pass counts the edits in the likeliest explanation, and the second judges by them.
    best = _Band(codes, half, Rates()).best()
    rows, columns = len(codes.row) + PRIOR, len(codes.column) + PRIOR
    stray, inserted = ~best.same, best.node < 0
    paired = np.flatnonzero(best.same)
    other_grid = codes.price[codes.row[best.node[paired]], codes.column[paired]] == REGRIDDED
    rates = Rates(
        deleted=(max(len(codes.row) - int((~inserted).sum()), 0) + 1) / rows,
        inserted=(int(inserted.sum()) + 1) / columns,
        renamed=(int((stray & ~inserted).sum()) + 1) / rows,
        swapped=(int((best.same[1:] & best.same[:-1] & (np.diff(best.node) == -1)).sum()) + 1) / rows,
        own=(int((codes.share[codes.column[stray]] > 0).sum()) + 1) / (int(stray.sum()) + 2),
        regridded=(int(other_grid.sum()) + 1) / (len(paired) + PRIOR),
    )
    best = _Band(codes, half, rates).best()
    node = np.concatenate([[-1], np.where(best.same, best.node, -2), [len(codes.row)]])
    breaks = np.diff(node) != 1  # before each node, and behind the last
    edited = breaks[1:] | breaks[:-1]
    near_edit = np.convolve(edited, np.ones(2 * EDGE - 1))[EDGE - 1 :][: len(edited)] > 0
    margin = np.where(near_edit, EDGE_MARGIN, MARGIN)
    return np.where(best.same & (best.margin >= margin), best.node, nothing)


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
                price = self._codes.price[self._codes.row[row]][self._codes.column[begin:last]]
                tally.enter(slice(begin, last), row, here + through, price != RENAMED)
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


def _price(chance: Float | float) -> Price:
    price: Price = np.rint(-NAT * np.log(chance)).astype(np.int32)
    return price


def merged(weight: NDArray[np.int8], stream: Int, start: Int, end: Int) -> tuple[Int, Bool]:
    """Follow a template through the streams: nodes of the replay come in order of start, times are ns.

    Returns:
        (positions of the replay's nodes in the order of the program; of each position, whether another stream
        could stand in its place).
    """
    queues = [np.flatnonzero(stream == number).tolist() for number in unique(stream).tolist()]
    head = [0] * len(queues)
    order: list[int] = []
    run: list[int] = []
    ties: list[tuple[int, int]] = []
    last = -1
    for node in range(len(weight)):
        # (nodes to pass, stream, weight, position) of each stream's next node that may be the template's.
        fits: list[tuple[int, int, int, int]] = []
        for queue, (positions, first) in enumerate(zip(queues, head, strict=True)):
            for ahead, position in enumerate(positions[first : first + LOOKAHEAD]):
                if weight[node, position] > 0:
                    fits.append((ahead, queue, int(weight[node, position]), position))
                    break
        if not fits:
            continue
        nearest = min(ahead for ahead, *_ in fits)
        heaviest = max(heavy for ahead, _, heavy, _ in fits if ahead == nearest)
        equal = [fit for fit in fits if fit[0] == nearest and fit[2] == heaviest]
        ahead, queue, _, pick = min(equal, key=lambda fit: (fit[1] != last, start[fit[3]]))
        ties += [
            (pick, other)
            for *_, other in equal
            if pick != other and start[pick] < end[other] and start[other] < end[pick]
        ]
        order += queues[queue][head[queue] : head[queue] + ahead + 1]
        run += [run[-1] + (queue != last) if run else 0] * (ahead + 1)
        head[queue] += ahead + 1
        last = queue
    for positions, first in zip(queues, head, strict=True):
        order += positions[first:]
        run += [run[-1] + 1 if run else 0] * (len(positions) - first)
    run_of = np.empty(len(stream), dtype=np.int64)
    run_of[order] = run
    tied = {int(run_of[position]) for tie in ties for position in tie}
    program = np.array(order, dtype=np.int64)
    if np.abs(program - np.arange(len(program))).mean() > MOST_DISORDER * len(program):
        return program, np.ones(len(program), dtype=bool)
    return program, np.isin(run_of, list(tied))


def consistent(template: Template, graph: Replay, by_order: Alignment) -> Alignment | None:
    """Pairs by order alone of a template without names, where equal calls have equal kernels.

    None where too few have.
    """
    texts = op_texts(template.trace, template.op)
    named = inferred(template.nodes, template.op, texts, graph.nodes) if by_order.is_whole else None
    if named is None:
        return None
    node = align(named, graph, {}).node
    return by_order._replace(node=np.where(by_order.node >= 0, node, -1))


def inferred(template: Nodes, op: Int, contents: Sequence[Content], replay: Nodes) -> Nodes | None:
    """The template, which has no names, with those that most calls of the same op have in the replay.

    None where the two are no one graph: they differ in the number or kinds of nodes, in too many kernels, or
    GEMMs do not run GEMM kernels. `op` and `contents` are of each node: the event row of its op, -1 for none.
    """
    if len(template) < LEAST_UNNAMED or not np.array_equal(template.kind, replay.kind):
        return None
    # A call is one of an op of these contents, and the first, second, ... of that op.
    count: Counter[int] = Counter()
    keys = []
    for row, content in zip(op.tolist(), contents, strict=True):
        keys.append((content, count[row] if row >= 0 else 0))
        count[row] += 1
    seen: dict[object, Counter[str]] = {}
    for key, name in zip(keys, replay.name, strict=True):
        seen.setdefault(key, Counter())[name] += 1
    agreed = {
        key: names.most_common(1)[0][0]
        for key, names in seen.items()
        if names.most_common(1)[0][1] >= MAJORITY * names.total()
    }
    names = [agreed.get(key, "") for key in keys]
    kernels = template.kind == KERNEL
    same = np.array([name == other for name, other in zip(names, replay.name, strict=True)])
    if same[kernels].mean() < CONSISTENT:
        return None
    # Ops that are GEMMs run a GEMM kernel.
    gemm_calls = [row for row, name in enumerate(template.op) if _GEMM_OP.match(name)]
    classes = classify_kernels([replay.name[row] for row in gemm_calls]) if gemm_calls else []
    with_gemm = {op[row] for row, kernel in zip(gemm_calls, classes, strict=True) if kernel in _GEMM_CLASSES}
    if len(with_gemm) < CONSISTENT * len(set(op[gemm_calls].tolist())):
        return None
    names = [name if kernel else "" for name, kernel in zip(names, kernels.tolist(), strict=True)]
    return Nodes(template.kind, names, template.blocks, template.op)

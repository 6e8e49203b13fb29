"""All pieces of a rank's step time, and the levels they are grouped by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tracelens.analysis.host import CAUSES as IDLE_CAUSES
from tracelens.analysis.moe import EXPERTS, PERMUTATION, STAGES, UNATTRIBUTED_NAME, regions
from tracelens.analysis.overview import NO_OP, shape_texts
from tracelens.arrays import Float, Int, lookup
from tracelens.compare.diff.pairing import CAUSES, COMM, EXCHANGED, ONE_SIDED, WAIT
from tracelens.compare.diff.sides import NO_ROWS, OUTSIDE, RankSide
from tracelens.compare.noise import StepSpread
from tracelens.table import Column, Schema, Table, codes
from tracelens.trace import Union

STATES = ("outside graphs", "in graphs on one side", "in graphs on both sides", "in graphs, no counterpart")
"""How GPU work, and the same work of the other run, is launched."""
OUTSIDE_OF_GRAPHS, ONE_SIDE, BOTH_SIDES, UNMATCHED = range(4)

GROUPED, UNGROUPED = "experts: loop to grouped GEMM", "experts: grouped GEMM to loop"
ALL_CAUSES = (*CAUSES, GROUPED, UNGROUPED, "idle")
IDLE = "(idle)"
_GRAPH_ROWS = tuple(f"{state}: {cause}" for state in STATES for cause in ALL_CAUSES)
LEVELS = ("cause", "graph", "stage", "category", "op", "shape", "kernel")
"""In reading order; the rows of each add up to the step time. `graph` is of runs with graph launches."""


class LedgerRows(NamedTuple):
    """The nonzero rows of a level, largest difference first; pairs are of the base and of the candidate."""

    names: list[str]
    by_step: list[StepSpread]  # ns over the steps, mean over ranks
    ns: list[Int]  # mean over steps, rounded so that all rows of a level add up to the step
    counts: list[Float]  # GPU activities per step
    cause: Int  # code of the cause with most of the difference, in its direction


class LevelPieces(NamedTuple):
    """Pieces of the step time of one rank."""

    row: Int  # row of the level
    step: Int
    cause: Int
    ns: Int
    starts: Int  # 1 if the activity begins in the step
    steps: int  # number of steps of the rank


class WaterfallLevel:
    """One breakdown of the step time of both runs, with so many causes and ranks of each run."""

    def __init__(self, name: str, causes: int, ranks: tuple[int, int]) -> None:
        self.name = name
        self._causes, self._ranks = causes, ranks
        self._row_of_text: dict[str, int] = {}
        self._parts: tuple[list[LevelPieces], list[LevelPieces]] = ([], [])

    def add(self, side: int, texts: Sequence[str], part: LevelPieces) -> None:
        """Add a rank of the base (0) or the candidate (1), whose rows are indices into `texts`."""
        rows = [self._row_of_text.setdefault(text, len(self._row_of_text)) for text in texts]
        if rows:
            part = part._replace(row=np.array(rows, dtype=np.int64)[part.row])
        self._parts[side].append(part)

    def rows(self, step_ns: tuple[int, int]) -> LedgerRows:
        """All rows; they add up to `step_ns`, the step time of the base and of the candidate."""
        names = list(self._row_of_text)
        by_step: list[StepSpread] = []
        by_cause: list[Float] = []
        starts: list[Float] = []
        for parts, ranks in zip(self._parts, self._ranks, strict=True):
            steps = min((part.steps for part in parts), default=0)
            ns_by_cause, count = np.zeros((len(names), self._causes)), np.zeros(len(names))
            for part in parts:
                np.add.at(ns_by_cause, (part.row, part.cause), part.ns / part.steps)
                np.add.at(count, part.row, part.starts / part.steps)
            by_cause.append(ns_by_cause / ranks)
            starts.append(count / ranks)
            # Ranks of one job have the same steps; extra steps of some ranks join the last common step.
            row = np.concatenate([NO_ROWS, *(part.row for part in parts)])
            step = np.concatenate([NO_ROWS, *(np.minimum(part.step, steps - 1) for part in parts)])
            piece_ns = np.concatenate([NO_ROWS, *(part.ns * (steps / part.steps) for part in parts)])
            by_step.append(spread(row, step, piece_ns, len(names), steps, ranks))
        ns = [apportion(times.mean, total) for times, total in zip(by_step, step_ns, strict=True)]
        order = np.argsort(-np.abs(ns[1] - ns[0]), kind="stable")
        order = order[(ns[0][order] > 0) | (ns[1][order] > 0)]
        return LedgerRows(
            names=[names[row] for row in order.tolist()],
            by_step=[side.take(order) for side in by_step],
            ns=[side[order] for side in ns],
            counts=[side[order] for side in starts],
            cause=main_cause(by_cause[1] - by_cause[0])[order],
        )


def main_cause(delta_ns: Float) -> Int:
    """The cause, column of a matrix, that changes each row most, in the direction of the row's change."""
    towards = np.sign(delta_ns.sum(axis=1, keepdims=True))
    cause: Int = np.where(towards, delta_ns * towards, np.abs(delta_ns)).argmax(axis=1)
    return cause


ICICLE = Schema(
    "Step time by category, op and kernel",
    (
        Column("node", "int64", doc="number of the row"),
        Column("parent", "int64", doc="node one level up, missing at the top", absent=-1),
        Column("level", "category", doc="category, op or kernel"),
        Column("name", "category", doc="category, op or kernel"),
        Column("base_ns", "int64", "ns", "per step"),
        Column("cand_ns", "int64", "ns", "per step"),
    ),
    kind="tree",
    doc="Parents before their children; the rows of each level add up to the step.",
    detail=True,
)


def add_rank(
    levels: Sequence[WaterfallLevel],
    number: int,
    side: RankSide,
    cause: Int,
    state: Int,
    waits: Union,
    regrouped: str,
) -> Float:
    """Add one rank of the base (0) or the candidate (1) to all levels; returns its time a step by cause, ns.

    `cause` is of each piece, `state` of each GPU activity (STATES); `waits` is when the rank waits for
    others, by its own clock, `regrouped` from the function of that name.
    """
    cause = cause.copy()
    if regrouped:
        experts = np.isin(side.stage, (EXPERTS, PERMUTATION)) & np.isin(cause, (EXCHANGED, ONE_SIDED))
        cause[experts] = ALL_CAUSES.index(regrouped)
    waited = np.rint(side.ns * side.waiting(waits)).astype(np.int64)
    waited[cause != COMM] = 0
    waiting = np.flatnonzero(waited)
    piece = np.concatenate((np.arange(len(side.row)), waiting))
    row, step = side.row[piece], side.step[piece]
    ns = np.concatenate((side.ns - waited, waited[waiting]))
    begins = np.concatenate((side.begins, np.zeros(len(waiting), dtype=np.int64)))
    cause = np.concatenate((cause, np.full(len(waiting), WAIT)))
    # Of each level the names, and the index of each piece's name.
    events, work = side.trace.arrays, side.work
    op, ops = lookup(events.name, side.op[row], len(events.names)), [*events.names, NO_OP]
    shape_of_work, shapes = shape_texts(side.trace, work._replace(op=side.op))
    op_shape, (op_codes, shape_codes) = codes(op, shape_of_work[row])
    op_shapes = zip(op_codes.tolist(), shape_codes.tolist(), strict=True)
    names: dict[str, tuple[Sequence[str], Int]] = {
        "cause": (ALL_CAUSES, cause),
        "graph": (_GRAPH_ROWS, state[row] * len(ALL_CAUSES) + cause),
        "stage": ((*STAGES, UNATTRIBUTED_NAME, OUTSIDE), side.stage[piece]),
        "category": (work.categories, work.category[row]),
        "op": (ops, op),
        "shape": ([f"{ops[op_code]} {shapes[shape_code]}" for op_code, shape_code in op_shapes], op_shape),
        "kernel": (work.names, work.name[row]),
    }
    for level in levels:
        texts, code = names[level.name]
        level.add(number, texts, LevelPieces(code, step, cause, ns, begins, side.steps))
        if level.name == "graph":  # idle time by how the work after it is launched
            idle = side.idle_time
            idle_step, idle_ns = idle.step, idle.ns
            idle_cause = np.full(len(idle_ns), ALL_CAUSES.index("idle"))
            code = lookup(state, idle.after, OUTSIDE_OF_GRAPHS) * len(ALL_CAUSES) + idle_cause
        else:  # by cause on the cause level, else as one row
            idle_step, why = (grid.reshape(-1) for grid in np.indices(side.idle.shape))
            idle_ns, code = side.idle.reshape(-1), np.zeros_like(why)
            idle_cause = np.full(len(why), ALL_CAUSES.index("idle"))
            if level.name == "cause":
                texts, code = [f"idle: {name}" for name in IDLE_CAUSES], why
            else:
                texts = [IDLE]
        part = LevelPieces(code, idle_step, idle_cause, idle_ns, np.zeros_like(idle_ns), side.steps)
        level.add(number, texts, part)
    by_cause = np.bincount(cause, weights=ns, minlength=len(ALL_CAUSES))
    by_cause[ALL_CAUSES.index("idle")] += side.idle.sum()
    return by_cause / side.steps


def regrouped(base: Sequence[RankSide], cand: Sequence[RankSide]) -> str:
    """GROUPED or UNGROUPED if expert GEMMs are grouped in one run and looped over in the other, else ""."""
    kinds = [
        {
            layer_pass.grouped
            for side in sides
            for layer_pass in side.trace.once(regions).passes
            if layer_pass.gemms
        }
        for sides in (base, cand)
    ]
    if kinds == [{False}, {True}]:
        return GROUPED
    return UNGROUPED if kinds == [{True}, {False}] else ""


def apportion(values: Float, total: int | None = None) -> Int:
    """Integers near `values` that add up to `total`, or as these do; the largest remainders are rounded up.

    Floats beyond 2**53 are off by more than a remainder; then the largest value takes the rest. Values
    further from `total` than float rounding are not its parts and keep their own sum.
    """
    low = np.floor(values).astype(np.int64)
    if total is None or abs(float(values.sum()) - total) > max(1.0, 1e-9 * total):
        total = round(float(values.sum()))
    missing = total - int(low.sum())
    if 0 <= missing <= len(low):
        low[np.argsort(-(values - low), kind="stable")[:missing]] += 1
    elif len(low):
        low[values.argmax()] += missing
    return low


def spread(row: Int, step: Int, ns: Float, rows: int, steps: int, ranks: int) -> StepSpread:
    """Mean and variance over steps of the time of each of `rows` rows, from the row, step and ns of pieces.

    Steps without a piece count as 0; the sum of a step is averaged over `ranks`.
    """
    cell, (cell_row, _) = codes(row, step)
    values = np.zeros(len(cell_row))
    np.add.at(values, cell, ns)
    return StepSpread.of(cell_row, values / ranks, rows, steps)


def icicle(sides: Sequence[Sequence[RankSide]]) -> Table:
    """ICICLE; `sides` are the ranks of the base and of the candidate."""
    total: dict[tuple[str, str, str], list[float]] = {}
    for number, ranks in enumerate(sides):
        for side in ranks:
            events, work = side.trace.arrays, side.work
            name = lookup(events.name, side.op[side.row], len(events.names))
            group, codes_of = codes(work.category[side.row], name, work.name[side.row])
            leaf_ns_of = np.bincount(group, weights=side.ns, minlength=len(codes_of[0])).tolist()
            names = [*events.names, NO_OP]
            leaves = [
                ((work.categories[category], names[op], work.names[kernel]), ns)
                for category, op, kernel, ns in zip(
                    *(code.tolist() for code in codes_of), leaf_ns_of, strict=True
                )
            ]
            for key, ns in [*leaves, ((IDLE, IDLE, IDLE), float(side.idle.sum()))]:
                total.setdefault(key, [0.0, 0.0])[number] += ns / side.steps / len(ranks)
    keys = sorted(total)
    leaf_ns = [apportion(np.array([total[key][number] for key in keys])) for number in (0, 1)]
    rows: list[tuple[int, int, str, str, int, int]] = []
    sums: dict[tuple[str, ...], list[int]] = {}
    for leaf, key in enumerate(keys):
        for depth in (1, 2, 3):
            entry = sums.setdefault(key[:depth], [0, 0])
            entry[0] += int(leaf_ns[0][leaf])
            entry[1] += int(leaf_ns[1][leaf])
    node_of_path: dict[tuple[str, ...], int] = {(): -1}
    for path, (base, cand) in sums.items():
        node_of_path[path] = len(rows)
        level = ("category", "op", "kernel")[len(path) - 1]
        rows.append((len(rows), node_of_path[path[:-1]], level, path[-1], base, cand))
    return ICICLE.from_rows(rows)


def graph_state(side: RankSide, other: RankSide, partner: Int) -> Int:
    """Code into STATES of each GPU activity; `partner` is the counterpart of each node."""
    node = side.node_of_work
    match = lookup(partner, node, -1)
    partner_in_graph = lookup(other.forest.copied, match, False)
    state = np.where(partner_in_graph, ONE_SIDE, OUTSIDE_OF_GRAPHS)
    in_graph = np.where(match < 0, UNMATCHED, np.where(partner_in_graph, BOTH_SIDES, ONE_SIDE))
    return np.where(side.in_graph, in_graph, state)

"""All pieces of a rank's step time, and the levels they are grouped by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tracelens.analysis.host import CAUSES as IDLE_CAUSES
from tracelens.analysis.moe import EXPERTS, PERMUTATION, STAGES, UNATTRIBUTED_NAME, regions
from tracelens.analysis.overview import NO_OP, shape_texts
from tracelens.arrays import Int, lookup
from tracelens.compare.diff.graphs import OUTSIDE as OUTSIDE_GRAPHS
from tracelens.compare.diff.graphs import STATES
from tracelens.compare.diff.ledger import Level, Part
from tracelens.compare.diff.pairing import CAUSES, COMM, EXCHANGED, ONE_SIDED, WAIT
from tracelens.compare.diff.sides import OUTSIDE, Side
from tracelens.table import codes
from tracelens.trace import Union

GROUPED, UNGROUPED = "experts: loop to grouped GEMM", "experts: grouped GEMM to loop"
ALL_CAUSES = (*CAUSES, GROUPED, UNGROUPED, "idle")
IDLE = "(idle)"

_GRAPH_ROWS = tuple(f"{state}: {cause}" for state in STATES for cause in ALL_CAUSES)

LEVELS = ("cause", "graph", "stage", "category", "op", "shape", "kernel", "rank")
"""In reading order; the rows of each add up to the step time. `graph` is of runs with graph launches."""


class _Pieces(NamedTuple):
    """Pieces of step time (see Side), with waiting split off."""

    row: Int
    step: Int
    ns: Int
    begins: Int
    cause: Int
    piece: Int


def add_rank(
    levels: Sequence[Level], number: int, side: Side, cause: Int, state: Int, waits: Union, regrouped: str
) -> None:
    """Add one rank to all levels.

    Args:
        levels: one for each of LEVELS.
        number: 0 for the base, 1 for the candidate.
        side: the rank.
        cause: of each piece, code into CAUSES.
        state: how each GPU activity is launched, code into STATES.
        waits: when it waits for other ranks, ns by its own clock.
        regrouped: from `regrouped`.
    """
    pieces = _pieces(side, cause, waits, regrouped)
    for level in levels:
        texts, code = _texts(level.name, side, pieces, state)
        part = Part(code, pieces.step, pieces.cause, pieces.ns, pieces.begins, side.steps)
        level.add(number, texts, part)
        if level.name == "graph":
            _add_idle_by_state(level, number, side, state)
        else:
            _add_idle(level, number, side)


def _add_idle_by_state(level: Level, number: int, side: Side, state: Int) -> None:
    """Add idle time by how the work after it is launched."""
    idle = side.idle_time
    cause = np.full(len(idle.ns), ALL_CAUSES.index("idle"))
    code = lookup(state, idle.after, OUTSIDE_GRAPHS) * len(ALL_CAUSES) + cause
    level.add(number, _GRAPH_ROWS, Part(code, idle.step, cause, idle.ns, np.zeros_like(idle.ns), side.steps))


def _add_idle(level: Level, number: int, side: Side) -> None:
    """Add idle time: by cause on the cause level, by rank on the rank level, else as one row."""
    step, why = (grid.reshape(-1) for grid in np.indices(side.idle.shape))
    code = np.zeros_like(why)
    texts = [_of_rank(side) if level.name == "rank" else IDLE]
    if level.name == "cause":
        texts, code = [f"idle: {name}" for name in IDLE_CAUSES], why
    cause = np.full(len(why), ALL_CAUSES.index("idle"))
    level.add(number, texts, Part(code, step, cause, side.idle.reshape(-1), np.zeros_like(why), side.steps))


def _pieces(side: Side, cause: Int, waits: Union, regrouped: str) -> _Pieces:
    cause = cause.copy()
    if regrouped:
        experts = np.isin(side.stage, (EXPERTS, PERMUTATION)) & np.isin(cause, (EXCHANGED, ONE_SIDED))
        cause[experts] = ALL_CAUSES.index(regrouped)
    waited = np.rint(side.ns * side.waiting(waits)).astype(np.int64)
    waited[cause != COMM] = 0
    waiting = np.flatnonzero(waited)
    piece = np.concatenate((np.arange(len(side.row)), waiting))
    return _Pieces(
        side.row[piece],
        side.step[piece],
        np.concatenate((side.ns - waited, waited[waiting])),
        np.concatenate((side.begins, np.zeros(len(waiting), dtype=np.int64))),
        np.concatenate((cause, np.full(len(waiting), WAIT))),
        piece,
    )


def _texts(level: str, side: Side, pieces: _Pieces, state: Int) -> tuple[Sequence[str], Int]:
    """Names of a level, and the index of each piece's name."""
    events, work = side.trace.arrays, side.work
    if level == "cause":
        return ALL_CAUSES, pieces.cause
    if level == "graph":
        return _GRAPH_ROWS, state[pieces.row] * len(ALL_CAUSES) + pieces.cause
    if level == "stage":
        return (*STAGES, UNATTRIBUTED_NAME, OUTSIDE), side.stage[pieces.piece]
    if level == "category":
        return work.categories, work.category[pieces.row]
    if level == "kernel":
        return work.names, work.name[pieces.row]
    if level == "rank":
        return (_of_rank(side),), np.zeros(len(pieces.row), dtype=np.int64)
    op = side.op[pieces.row]
    name = lookup(events.name, op, len(events.names))
    names = [*events.names, NO_OP]
    if level == "op":
        return names, name
    shape, texts = shape_texts(side.trace, work._replace(op=side.op))
    code, (op_codes, shape_codes) = codes(name, shape[pieces.row])
    return [
        f"{names[op_code]} {texts[shape_code]}"
        for op_code, shape_code in zip(op_codes.tolist(), shape_codes.tolist(), strict=True)
    ], code


def _of_rank(side: Side) -> str:
    return f"rank {side.rank}"


def regrouped(base: Sequence[Side], cand: Sequence[Side]) -> str:
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

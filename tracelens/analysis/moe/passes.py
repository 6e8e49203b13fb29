"""Times of each pass of a micro-batch through an MoE layer on one rank: the part that travels."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tracelens.analysis.common import integers
from tracelens.analysis.moe.host_syncs import blocking
from tracelens.analysis.moe.regions import PHASES, LayerPass, Regions, regions
from tracelens.analysis.moe.stages import COMBINE, DISPATCH, EXPERTS, STAGES
from tracelens.arrays import Bool, Int
from tracelens.trace import WORK_KINDS, Scope, Trace, Work, exclusive, find_steps, is_step


class RankPasses(NamedTuple):
    """What one rank knows of its MoE layers.

    Attributes:
        rank: of the trace.
        visits: passes of micro-batches through layers.
        labels: names of the steps.
        steps: number of steps, whole ones.
        step_ns: mean duration of a step.
        number: place in `visits` of each row of the following, one a pass and phase.
        phase: code into PHASES.
        stage_ns: time of each stage, one column each.
        start: first GPU work of the pass, ns.
        end: end of its last.
        idle_ns: of the time in between, without any GPU work.
        exposed_ns: of the time in between, in its communication and without computation.
        experts_end: end of the last work of the experts.
        blocking: number of blocking calls, one column a stage.
        blocked_ns: time in them.
        received: of each visit, rows that the dispatch brought, -1 if not recorded.
        group: ranks among which tokens are exchanged; empty where they are not.
        exchanged: whether any communication brings tokens or takes them back.
        framed: whether frames of the program told where the layers are.
    """

    rank: int
    visits: list[LayerPass]
    labels: list[str]
    steps: int
    step_ns: float
    number: Int
    phase: Int
    stage_ns: Int
    start: Int
    end: Int
    idle_ns: Int
    exposed_ns: Int
    experts_end: Int
    blocking: Int
    blocked_ns: Int
    received: list[int]
    group: tuple[int, ...]
    exchanged: bool
    framed: bool

    @property
    def in_step(self) -> Bool:
        """Which rows count for a step: not those before the first one and after the last."""
        whole = np.array([is_step(label) for label in self.labels], dtype=bool)
        step = np.array([visit.step for visit in self.visits], dtype=np.int64)
        return whole[step[self.number]]

    @property
    def layer(self) -> Int:
        return np.array([visit.layer for visit in self.visits], dtype=np.int64)[self.number]

    def rows_of(self, visit: int) -> int:
        """Rows that the experts compute in a pass: by their products' sizes, else by what was received."""
        known = self.visits[visit].rows
        return sum(known) if known and min(known) >= 0 else self.received[visit]


def passes_of(trace: Trace, *, scope: Scope = "all") -> RankPasses:
    """The passes of one rank.

    Args:
        trace: of the rank.
        scope: which GPU work counts, see work.Scope.
    """
    work, found = trace.work, trace.once(regions)
    counted = (found.visit >= 0) & (work.linked | (scope == "all"))
    rows = np.flatnonzero(counted)
    cell = found.visit[rows] * len(PHASES) + found.phase[rows]
    cells, place = np.unique(cell, return_inverse=True)
    count, width = len(cells), len(STAGES)
    mine = work.take(rows)
    group = place * width + found.stage[rows]
    own = exclusive(mine.start, mine.end, group)
    stage_ns = np.zeros(count * width, dtype=np.int64)
    np.add.at(stage_ns, group, mine.end - own)
    start, end, experts_end = (np.zeros(count, dtype=np.int64) for _ in range(3))
    if count:
        start[:] = np.iinfo(np.int64).max
        np.minimum.at(start, place, mine.start)
        np.maximum.at(end, place, mine.end)
        experts = found.stage[rows] == EXPERTS
        np.maximum.at(experts_end, place[experts], mine.end[experts])
    calls, blocked_ns = _blocked(trace, cells)
    return RankPasses(
        rank=trace.meta.rank,
        visits=found.visits,
        labels=found.labels,
        **_steps(trace, found),
        number=cells // len(PHASES),
        phase=cells % len(PHASES),
        stage_ns=stage_ns.reshape(count, width),
        start=start,
        end=end,
        idle_ns=(end - start) - work.union().covered(start, end) if count else start,
        exposed_ns=_exposed(work, mine, place, count),
        experts_end=experts_end,
        blocking=calls,
        blocked_ns=blocked_ns,
        received=_received(trace, found),
        group=exchange_group(trace),
        exchanged=bool(((work.kind == WORK_KINDS.index("comm")) & (found.visit >= 0)).any()),
        framed=found.framed,
    )


def _steps(trace: Trace, found: Regions) -> dict[str, Any]:
    if not found.labels:
        return {"steps": 1, "step_ns": 0.0}
    windows = find_steps(trace, trace.work)
    whole = windows.whole
    steps = max(len(whole), 1)
    return {"steps": steps, "step_ns": float(windows.edges[whole.stop] - windows.edges[whole.start]) / steps}


def _exposed(work: Work, mine: Work, place: Int, count: int) -> Int:
    """Time of each pass in its communication and without any computation."""
    comm = mine.kind == WORK_KINDS.index("comm")
    start, end, group = mine.start[comm], mine.end[comm], place[comm]
    own = exclusive(start, end, group)
    result = np.zeros(count, dtype=np.int64)
    np.add.at(result, group, (end - own) - work.union("computation").covered(own, end))
    return result


def _blocked(trace: Trace, cells: Int) -> tuple[Int, Int]:
    """Blocking calls of each pass by stage, and the time in them."""
    found = trace.once(blocking)
    calls = np.zeros((len(cells), len(STAGES)), dtype=np.int64)
    blocked = np.zeros(len(cells), dtype=np.int64)
    inside = found.visit >= 0
    cell = found.visit[inside] * len(PHASES) + found.phase[inside]
    at = np.minimum(np.searchsorted(cells, cell), max(len(cells) - 1, 0))
    hit = cells[at] == cell if len(cells) else np.zeros(0, dtype=bool)
    np.add.at(calls, (at[hit], found.stage[inside][hit]), 1)
    np.add.at(blocked, at[hit], found.blocked_ns[inside][hit])
    return calls, blocked


def exchanges(trace: Trace) -> tuple[Int, Int]:
    """Rows of the collectives table of dispatch and combine, positions of their work; with `trace.once`."""
    found, kernel = trace.once(regions), trace.tables["collectives"].array("kernel_id")
    place = trace.arrays.places(trace.work.event)
    at = np.where(kernel >= 0, place[np.maximum(kernel, 0)], -1)
    rows = np.flatnonzero(at >= 0)
    rows = rows[(found.visit[at[rows]] >= 0) & np.isin(found.stage[at[rows]], (DISPATCH, COMBINE))]
    return rows, at[rows]


def _received(trace: Trace, found: Regions) -> list[int]:
    """Rows that the largest dispatch of each pass brought by its split sizes, -1 if not recorded."""
    result = [-1] * len(found.visits)
    largest = [-1] * len(found.visits)
    table = trace.tables["collectives"]
    rows, at = trace.once(exchanges)
    forward = (found.stage[at] == DISPATCH) & (found.phase[at] != PHASES.index("backward"))
    rows, at = rows[forward], at[forward]
    splits, size = table.texts("out_split", rows), table.array("out_bytes")[rows]
    for visit, split, number in zip(found.visit[at].tolist(), splits, size.tolist(), strict=True):
        parts = integers(split)
        if parts and number > largest[visit]:
            result[visit], largest[visit] = sum(parts), number
    return result


def exchange_group(trace: Trace) -> tuple[int, ...]:
    """The ranks that exchange tokens: those of the largest group of a dispatch or combine."""
    rows, _ = trace.once(exchanges)
    lists = {
        text: tuple(integers(text)) for text in set(trace.tables["collectives"].texts("group_ranks", rows))
    }
    return max(lists.values(), key=len, default=())

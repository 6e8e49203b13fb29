"""Times of each pass of a micro-batch through an MoE layer on one rank: the part that travels."""

from __future__ import annotations

from math import comb
from typing import Any, NamedTuple

import numpy as np

from tracelens.analysis.comm import collective_kinds
from tracelens.analysis.common import integers
from tracelens.analysis.moe.host_syncs import blocking
from tracelens.analysis.moe.regions import PHASES, LayerPass, Regions, regions
from tracelens.analysis.moe.stages import COMBINE, DISPATCH, EXPERTS, STAGES
from tracelens.analysis.moe.tensor_sizes import UNATTRIBUTED
from tracelens.arrays import Bool, Int, lookup
from tracelens.trace import WORK_KINDS, Scope, Trace, Work, collectives, exclusive, is_step, steps_of


class RankPasses(NamedTuple):
    """What one rank knows of its MoE layers.

    Attributes:
        rank: of the trace.
        passes: passes of micro-batches through layers.
        labels: names of the steps.
        steps: number of steps, whole ones.
        step_ns: mean duration of a step.
        number: index into `passes` of each row of the following, one a pass and phase.
        phase: code into PHASES.
        stage_ns: time of each stage, one column each.
        no_layer_ns: time of each stage in whole steps, in compiled backward work whose layer is not known; at
            UNATTRIBUTED that whose stage is not known either.
        start: first GPU work of the pass, ns.
        end: end of its last.
        dur: from start to end; of a pass in a compiled graph, which interleaves layers, in its own work and
            idle before each piece of it.
        idle_ns: of that time, without any GPU work.
        exposed_ns: of the time in between, in its communication and without computation.
        experts_end: end of the last work of the experts.
        blocking: number of blocking calls, one column a stage.
        blocked_ns: time in them.
        received: of each pass, rows that the dispatch brought, -1 if not recorded.
        group: ranks of the expert-parallel group; empty without expert parallelism.
        moves_tokens: whether any communication brings tokens or takes them back.
        framed: whether frames of the program mark the layers.
    """

    rank: int
    passes: list[LayerPass]
    labels: list[str]
    steps: int
    step_ns: float
    number: Int
    phase: Int
    stage_ns: Int
    no_layer_ns: Int
    start: Int
    end: Int
    dur: Int
    idle_ns: Int
    exposed_ns: Int
    experts_end: Int
    blocking: Int
    blocked_ns: Int
    received: list[int]
    group: tuple[int, ...]
    moves_tokens: bool
    framed: bool

    @property
    def in_step(self) -> Bool:
        """Which rows count for a step: not those before the first one and after the last."""
        is_whole = np.array([is_step(label) for label in self.labels], dtype=bool)
        step = np.array([layer_pass.step for layer_pass in self.passes], dtype=np.int64)
        return is_whole[step[self.number]]

    @property
    def layer(self) -> Int:
        return np.array([layer_pass.layer for layer_pass in self.passes], dtype=np.int64)[self.number]

    def rows_of(self, number: int) -> int:
        """Rows that the experts compute in a pass: by the GEMM sizes, else by what was received."""
        known = self.passes[number].rows
        return sum(known) if known and min(known) >= 0 else self.received[number]


def rank_passes(trace: Trace, *, scope: Scope = "all") -> RankPasses:
    """The passes of one rank.

    Args:
        trace: of the rank.
        scope: which GPU work counts, see trace.Scope.
    """
    work, layers = trace.work, trace.once(regions)
    counted = (layers.layer_pass >= 0) & (work.linked | (scope == "all"))
    rows = np.flatnonzero(counted)
    cell = layers.layer_pass[rows] * len(PHASES) + layers.phase[rows]
    cells, pass_row = np.unique(cell, return_inverse=True)
    count, width = len(cells), len(STAGES)
    in_layers = work.take(rows)
    group = pass_row * width + layers.stage[rows]
    exclusive_start = exclusive(in_layers.start, in_layers.end, group)
    stage_ns = np.zeros(count * width, dtype=np.int64)
    np.add.at(stage_ns, group, in_layers.end - exclusive_start)
    start, end, experts_end = (np.zeros(count, dtype=np.int64) for _ in range(3))
    if count:
        start[:] = np.iinfo(np.int64).max
        np.minimum.at(start, pass_row, in_layers.start)
        np.maximum.at(end, pass_row, in_layers.end)
        experts = layers.stage[rows] == EXPERTS
        np.maximum.at(experts_end, pass_row[experts], in_layers.end[experts])
    dur, idle_ns = _durations(work, rows, pass_row, layers.interleaved[rows], start, end)
    calls, blocked_ns = _blocked(trace, cells)
    return RankPasses(
        rank=trace.meta.rank,
        passes=layers.passes,
        labels=layers.labels,
        **_steps(trace, layers),
        number=cells // len(PHASES),
        phase=cells % len(PHASES),
        stage_ns=stage_ns.reshape(count, width),
        no_layer_ns=_no_layer_ns(trace, layers, scope),
        start=start,
        end=end,
        dur=dur,
        idle_ns=idle_ns,
        exposed_ns=_exposed(work, in_layers, pass_row, count),
        experts_end=experts_end,
        blocking=calls,
        blocked_ns=blocked_ns,
        received=_received(trace, layers),
        group=expert_parallel_group(trace),
        moves_tokens=bool(((work.kind == WORK_KINDS.index("comm")) & (layers.layer_pass >= 0)).any()),
        framed=layers.framed,
    )


def _steps(trace: Trace, layers: Regions) -> dict[str, Any]:
    if not layers.labels:
        return {"steps": 1, "step_ns": 0.0}
    windows = steps_of(trace)
    in_full = windows.whole
    steps = max(len(in_full), 1)
    return {
        "steps": steps,
        "step_ns": float(windows.edges[in_full.stop] - windows.edges[in_full.start]) / steps,
    }


def _durations(
    work: Work, rows: Int, pass_row: Int, interleaved: Bool, start: Int, end: Int
) -> tuple[Int, Int]:
    """Duration and idle time of each pass, see RankPasses.

    Args:
        work: of the rank.
        rows: positions of the work of passes.
        pass_row: of each of these.
        interleaved: which of these are.
        start: of each pass.
        end: of each pass.
    """
    if not len(start):
        return start, start
    dur = end - start
    idle = dur - work.union().covered(start, end)
    if interleaved.any():
        apart = pass_row[interleaved]
        rows = rows[interleaved]
        dur[apart] = idle[apart] = 0
        done = np.maximum.accumulate(work.end)
        np.add.at(idle, apart, np.maximum(work.start[rows] - done[np.maximum(rows - 1, 0)], 0))
        exclusive_start = exclusive(work.start[rows], work.end[rows], apart)
        np.add.at(dur, apart, work.end[rows] - exclusive_start)
        dur[np.unique(apart)] += idle[np.unique(apart)]
    return dur, idle


def _no_layer_ns(trace: Trace, layers: Regions, scope: Scope) -> Int:
    """Time of each stage in whole steps outside of all passes, see RankPasses."""
    work = trace.work
    counted = (layers.stage >= 0) & (layers.layer_pass < 0) & (work.linked | (scope == "all"))
    rows = np.flatnonzero(counted)
    rows = rows[steps_of(trace).only_whole().of_work[rows] >= 0] if len(rows) else rows
    stage, total = layers.stage[rows], np.zeros(UNATTRIBUTED + 1, dtype=np.int64)
    np.add.at(total, stage, work.end[rows] - exclusive(work.start[rows], work.end[rows], stage))
    return total


def _exposed(work: Work, in_layers: Work, pass_row: Int, count: int) -> Int:
    """Time of each pass in its communication and without any computation."""
    comm = in_layers.kind == WORK_KINDS.index("comm")
    start, end, group = in_layers.start[comm], in_layers.end[comm], pass_row[comm]
    exclusive_start = exclusive(start, end, group)
    result = np.zeros(count, dtype=np.int64)
    np.add.at(
        result, group, (end - exclusive_start) - work.union("computation").covered(exclusive_start, end)
    )
    return result


def _blocked(trace: Trace, cells: Int) -> tuple[Int, Int]:
    """Blocking calls of each pass by stage, and the time in them."""
    host_syncs = trace.once(blocking)
    calls = np.zeros((len(cells), len(STAGES)), dtype=np.int64)
    blocked = np.zeros(len(cells), dtype=np.int64)
    inside = host_syncs.layer_pass >= 0
    cell = host_syncs.layer_pass[inside] * len(PHASES) + host_syncs.phase[inside]
    index = np.minimum(np.searchsorted(cells, cell), max(len(cells) - 1, 0))
    hit = cells[index] == cell if len(cells) else np.zeros(0, dtype=bool)
    np.add.at(calls, (index[hit], host_syncs.stage[inside][hit]), 1)
    np.add.at(blocked, index[hit], host_syncs.blocked_ns[inside][hit])
    return calls, blocked


def token_messages(trace: Trace) -> tuple[Int, Int]:
    """Rows of the collectives table of dispatch and combine, positions of their work; with `trace.once`.

    Reductions over all ranks and broadcasts beside them bring no token to another rank.
    """
    layers, kernel = trace.once(regions), trace.tables["collectives"].array("kernel_id")
    work_of = trace.arrays.places(trace.work.event)
    work = lookup(work_of, kernel, -1)
    rows = np.flatnonzero(work >= 0)
    rows = rows[(layers.layer_pass[work[rows]] >= 0) & np.isin(layers.stage[work[rows]], (DISPATCH, COMBINE))]
    others = [collectives().index(name) for name in ("all_reduce", "broadcast", "barrier")]
    rows = rows[~np.isin(trace.once(collective_kinds)[work[rows]], others)]
    return rows, work[rows]


def _received(trace: Trace, layers: Regions) -> list[int]:
    """Rows that the largest dispatch of each pass brought by its split sizes, -1 if not recorded."""
    result = [-1] * len(layers.passes)
    largest = [-1] * len(layers.passes)
    table = trace.tables["collectives"]
    rows, work = trace.once(token_messages)
    forward = (layers.stage[work] == DISPATCH) & (layers.phase[work] != PHASES.index("backward"))
    rows, work = rows[forward], work[forward]
    splits, size = table.texts("out_split", rows), table.array("out_bytes")[rows]
    for number, split, out_bytes in zip(layers.layer_pass[work].tolist(), splits, size.tolist(), strict=True):
        parts = integers(split)
        if parts and out_bytes > largest[number]:
            result[number], largest[number] = sum(parts), out_bytes
    return result


def expert_parallel_group(trace: Trace) -> tuple[int, ...]:
    """The expert-parallel ranks: those of the largest group of a dispatch or combine."""
    rows, _ = trace.once(token_messages)
    lists = {
        text: tuple(integers(text)) for text in set(trace.tables["collectives"].texts("group_ranks", rows))
    }
    return max(lists.values(), key=len, default=())


def deduplicated_share(trace: Trace) -> float:
    """Copies of a token when each rank gets at most one, against one an expert; 1 where that is not known.

    With E experts spread evenly over P ranks and k of them chosen at random, a rank has none of the k with
    probability C(E - E/P, k) / C(E, k); P times the rest is the mean number of ranks a token goes to.
    """
    ranks = len(expert_parallel_group(trace))
    layer_pass: LayerPass | None = next(
        (
            layer_pass
            for layer_pass in trace.once(regions).passes
            if layer_pass.experts > 0 and layer_pass.top_k > 0
        ),
        None,
    )
    if layer_pass is None or ranks < 2 or layer_pass.experts % ranks:
        return 1.0
    elsewhere = layer_pass.experts - layer_pass.experts // ranks
    copies = ranks * (1 - comb(elsewhere, layer_pass.top_k) / comb(layer_pass.experts, layer_pass.top_k))
    return copies / layer_pass.top_k

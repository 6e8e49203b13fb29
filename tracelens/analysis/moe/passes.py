"""Times of each pass through an MoE layer on one rank, and the calls in which the host waits in it."""

from __future__ import annotations

from math import comb
from typing import Any, NamedTuple

import numpy as np

from tracelens.analysis.comm import collective_kinds
from tracelens.analysis.common import integers
from tracelens.analysis.host import blocking_calls, threads
from tracelens.analysis.moe.layers import COMBINE, DISPATCH, EXPERTS, HOST_COPY, STAGES, stage_of
from tracelens.analysis.moe.regions import PHASES, UNATTRIBUTED, LayerPass, Regions, regions
from tracelens.arrays import Bool, Int, lookup
from tracelens.table import nearest
from tracelens.trace import (
    WORK_KINDS,
    Scope,
    Trace,
    Work,
    collectives,
    enclosing_op,
    exclusive,
    is_step,
    matching,
    steps_of,
)


class RankPasses(NamedTuple):
    """What one rank knows of its MoE layers."""

    rank: int  # of the trace
    passes: list[LayerPass]  # passes of micro-batches through layers
    labels: list[str]  # names of the steps
    steps: int  # number of steps, whole ones
    step_ns: float  # mean duration of a step
    number: Int  # index into `passes` of each row of the following, one a pass and phase
    phase: Int  # code into PHASES
    stage_ns: Int  # time of each stage, one column each
    # time of each stage in whole steps, in compiled backward work whose layer is not known; at UNATTRIBUTED
    # that whose stage is not known either
    no_layer_ns: Int
    start: Int  # first GPU work of the pass, ns
    end: Int  # end of its last
    # from start to end; of a pass in a compiled graph, which interleaves layers, in its own work and idle
    # before each piece of it
    dur: Int
    idle_ns: Int  # of that time, without any GPU work
    exposed_ns: Int  # of the time in between, in its communication and without computation
    experts_end: Int  # end of the last work of the experts
    blocking: Int  # number of blocking calls, one column a stage
    blocked_ns: Int  # time in them
    received: list[int]  # of each pass, rows that the dispatch brought, -1 if not recorded
    group: tuple[int, ...]  # ranks of the expert-parallel group; empty without expert parallelism
    moves_tokens: bool  # whether any communication brings tokens or takes them back
    framed: bool  # whether frames of the program mark the layers

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


class Blocking(NamedTuple):
    """Blocking calls in order of time, nested ones once."""

    event: Int  # row of the call
    # pass through an MoE layer (see Regions) whose work the thread launched last, -1 for none
    layer_pass: Int
    stage: Int  # code of its stage, -1 for none
    phase: Int  # code of its phase, -1 for none
    start: Int  # of the call, ns
    blocked_ns: Int  # duration of the call
    # start of the first work that the thread launched after it, ns; the call's end if there is none
    until: Int


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


def blocking(trace: Trace) -> Blocking:
    """The blocking calls of one rank; ask with `trace.once(blocking)`."""
    work, events = trace.work, trace.arrays
    layers = trace.once(regions)
    if not len(work.event):
        return Blocking(*(np.empty(0, dtype=np.int64) for _ in Blocking._fields))
    rows = np.flatnonzero(blocking_calls(trace, work))
    rows = rows[np.argsort(events.start[rows], kind="stable")]
    thread = threads(trace)
    # Of nested calls the outer one.
    reached = _reached(events.end[rows], thread[rows])
    rows = rows[events.end[rows] > reached]
    caller = work.host_call
    called = np.flatnonzero(caller >= 0)
    last, following = (np.full(len(rows), -1, dtype=np.int64) for _ in range(2))
    for number in np.unique(thread[rows]):
        on_thread = np.flatnonzero(thread[rows] == number)
        thread_work = called[thread[caller[called]] == number]
        thread_work = thread_work[np.argsort(events.start[caller[thread_work]], kind="stable")]
        times = events.start[caller[thread_work]]
        before = np.searchsorted(times, events.end[rows[on_thread]], side="right") - 1
        last[on_thread] = lookup(thread_work, before, -1)
        after = before + 1
        following[on_thread] = (
            np.where(after < len(thread_work), thread_work[np.minimum(after, len(thread_work) - 1)], -1)
            if len(thread_work)
            else -1
        )
    named = np.full(len(rows), -1, dtype=np.int64)
    if work.cpu_only:
        last, named = _inside(trace, rows, last, following)
    else:
        last = _waited_for(trace, rows, last, caller)
    start, end = events.start[rows], events.end[rows]
    until = np.where(following >= 0, np.maximum(work.start[following], end), end)

    def of(values: Int) -> Int:
        return lookup(values, last, -1)

    layer_pass = of(layers.layer_pass)
    stage = np.where((layer_pass >= 0) & (named >= 0), named, of(layers.stage))
    return Blocking(
        event=rows,
        layer_pass=layer_pass,
        stage=stage,
        phase=of(layers.phase),
        start=start,
        blocked_ns=end - start,
        until=until,
    )


def _inside(trace: Trace, rows: Int, last: Int, following: Int) -> tuple[Int, Int]:
    """The work beside each read of a host that does the work itself, and the stage that its frame names.

    There is no copy to tell by, and a part of a layer may begin with a read: then it is the work behind. The
    stage is -1 where no frame says it, and where the read is work of its own.
    """
    events, work = trace.arrays, trace.work
    names = [stage_of(name) for name in events.names]
    code = np.array([STAGES.index(name) if name else -1 for name in names], dtype=np.int64)[events.name]
    frames = nearest(events.parent, events.depth, (code >= 0) & events.where("annotation", "python"))
    frame = np.where(events.places(work.event)[rows] < 0, frames[rows], -1)
    before = (last >= 0) & (work.start[np.maximum(last, 0)] >= events.start[frame])
    after = (following >= 0) & (work.start[np.maximum(following, 0)] < events.end[frame])
    last = np.where((frame >= 0) & ~before & after, following, last)
    return last, lookup(code, frame, -1)


def _waited_for(trace: Trace, rows: Int, last: Int, caller: Int) -> Int:
    """The work that says where a blocking call belongs: its op's, else the last copy to the host.

    Sizes are often copied beside other work, and waited for when that has been launched.
    """
    work, events = trace.work, trace.arrays
    around = trace.once(enclosing_op)
    op = around[rows]
    by_own_op = (op >= 0) & (lookup(around, lookup(caller, last, -1), -1) == op)
    out = matching(work.names, HOST_COPY)
    copies = np.flatnonzero(out[work.name] & ~work.is_kernel & (caller >= 0))
    # What an op copies and waits for itself, nobody else waits for.
    copies = copies[~np.isin(around[caller[copies]], op[op >= 0])]
    copies = copies[np.argsort(events.start[caller[copies]], kind="stable")]
    if not len(copies):
        return last
    index = np.searchsorted(events.start[caller[copies]], events.end[rows], side="right") - 1
    copied = lookup(copies, index, -1)
    layer_pass = trace.once(regions).layer_pass
    beside = (
        (copied >= 0) & (last >= 0) & (layer_pass[np.maximum(copied, 0)] == layer_pass[np.maximum(last, 0)])
    )
    return np.where(beside & ~by_own_op, copied, last)


def _reached(end: Int, thread: Int) -> Int:
    """How far the calls before each one reach on its thread."""
    result = np.full(len(end), np.iinfo(np.int64).min)
    for number in np.unique(thread):
        on_thread = np.flatnonzero(thread == number)
        result[on_thread[1:]] = np.maximum.accumulate(end[on_thread])[:-1]
    return result

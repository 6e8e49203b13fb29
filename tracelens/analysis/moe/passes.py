"""Times of each pass through an MoE layer on one rank, and the calls in which the host waits in it."""

from __future__ import annotations

from collections.abc import Mapping
from math import comb
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from tracelens.analysis.comm import collective_kinds
from tracelens.analysis.common import integers
from tracelens.analysis.host import ALLOCATION, SYNCHRONIZE, blocking_calls, named, threads
from tracelens.analysis.moe.layers import (
    COMBINE,
    DISPATCH,
    EXPERTS,
    HOST_COPY,
    STAGES,
    in_launch_order,
    stage_of,
)
from tracelens.analysis.moe.regions import BACKWARD, PHASES, UNATTRIBUTED, LayerPass, regions, why_no_layer
from tracelens.arrays import Bool, Int, lookup, numbered, unique
from tracelens.table import nearest, sums
from tracelens.trace import (
    WORK_KINDS,
    Scope,
    Trace,
    collectives,
    enclosing_op,
    exclusive,
    fitting,
    is_step,
    rows_by_code,
    steps_of,
)


class RankPasses(NamedTuple):
    """What one rank knows of its MoE layers."""

    rank: int  # of the trace
    passes: list[LayerPass]  # passes of micro-batches through layers
    lacking: str  # why there are none, "" where there are
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
    blocking: Int  # number of waits in blocking calls, one column a stage
    allocations: Int  # those of them that are for memory
    blocked_ns: Int  # time in them
    received: list[int]  # of each pass, rows that the dispatch brought, -1 if not recorded
    # of each pass, whether experts compute buffers of a fixed size, of whose rows the trace says nothing
    buffered: list[bool]
    has_noted_rows: bool  # whether the recorder noted how many rows of buffers lie in groups in another step
    group: tuple[int, ...]  # ranks of the expert-parallel group; empty without expert parallelism
    moves_tokens: bool  # whether any communication brings tokens or takes them back
    framed: bool  # whether frames of the program mark the layers
    chunk_layers: Mapping[int, int]  # MoE layers of each chunk of the model, see Regions

    @property
    def in_step(self) -> Bool:
        """Which rows count for a step: not those before the first one and after the last."""
        is_whole = np.array([is_step(label) for label in self.labels], dtype=bool)
        step = np.array([layer_pass.step for layer_pass in self.passes], dtype=np.int64)
        return is_whole[step[self.number]]

    @property
    def layer(self) -> Int:
        return np.array([layer_pass.layer for layer_pass in self.passes], dtype=np.int64)[self.number]

    def numbered(self, layers: Int) -> RankPasses:
        """The same with other numbers of the layers, by those that they have."""
        passes = [replace(layer_pass, layer=int(layers[layer_pass.layer])) for layer_pass in self.passes]
        return self._replace(passes=passes)

    def masks_rows(self, number: int) -> bool:
        """Whether the grouped GEMMs of a pass have rows of other ranks' experts, which they leave out."""
        return not self.moves_tokens and self.passes[number].masks_rows

    def rows_of(self, number: int) -> int:
        """Rows that the experts compute in a pass: by the GEMM sizes, else by what was received."""
        known = self.passes[number].rows
        if self.masks_rows(number) or (self.buffered[number] and not self.has_noted_rows):
            return -1
        return sum(known) if known and min(known) >= 0 else self.received[number]

    def rows_by_expert(self, number: int) -> tuple[int, ...]:
        """Rows of all experts of the rank in a pass, also those without any; empty where not known.

        Where the trace does not record their numbers they are in no order.
        """
        layer_pass = self.passes[number]
        rows = layer_pass.rows
        if layer_pass.expert_rows or layer_pass.grouped or not rows or min(rows) < 0:
            return layer_pass.expert_rows
        if self.moves_tokens and not self.group:
            return ()  # how many experts the rank has is not known
        experts = layer_pass.experts // max(len(self.group), 1)
        if len(rows) <= layer_pass.sorted_by < experts:
            experts = layer_pass.sorted_by
        unused = experts - len(rows)
        return (*rows, *(0,) * unused) if unused >= 0 else ()


class Blocking(Struct, frozen=True):
    """Blocking calls in order of time, nested ones once."""

    event: Int  # row of the call
    # pass through an MoE layer (see Regions) whose work the thread launched last, -1 for none
    layer_pass: Int
    stage: Int  # code of its stage, -1 for none
    phase: Int  # code of its phase, -1 for none
    start: Int  # of the call, ns
    blocked_ns: Int  # duration of the call
    # whether it waits once more for the copy that the call before it, in the same op, waited for: torch reads
    # a value with a copy and a synchronize, which are one wait
    repeats: Bool
    # start of the first work that the thread launched after it, ns; the call's end if there is none
    until: Int


def rank_passes(trace: Trace, *, scope: Scope = "all") -> RankPasses:
    """The passes of one rank.

    Args:
        trace: of the rank.
        scope: which GPU work counts, see trace.Scope.
    """
    work, layers = trace.work, trace.once(regions)
    counted = work.linked | (scope == "all")
    rows = np.flatnonzero((layers.layer_pass >= 0) & counted)
    cell = layers.layer_pass[rows] * len(PHASES) + layers.phase[rows]
    cells, pass_row = numbered(cell)
    count, width = len(cells), len(STAGES)
    in_layers = work.take(rows)
    stage_of_pass = pass_row * width + layers.stage[rows]
    stage_ns = _covered_ns(in_layers.start, in_layers.end, stage_of_pass, count * width)
    start, end, experts_end = (np.zeros(count, dtype=np.int64) for _ in range(3))
    dur = idle_ns = end - start
    if count:
        start[:] = np.iinfo(np.int64).max
        np.minimum.at(start, pass_row, in_layers.start)
        np.maximum.at(end, pass_row, in_layers.end)
        experts = layers.stage[rows] == EXPERTS
        np.maximum.at(experts_end, pass_row[experts], in_layers.end[experts])
        dur = end - start
        idle_ns = dur - work.union().covered(start, end)
    interleaved = layers.interleaved[rows]
    if interleaved.any():
        # Of passes between work of other layers: their own work and the idle time before each piece of it.
        apart, pieces = pass_row[interleaved], rows[interleaved]
        dur[apart] = idle_ns[apart] = 0
        done = np.maximum.accumulate(work.end)
        np.add.at(idle_ns, apart, np.maximum(work.start[pieces] - done[np.maximum(pieces - 1, 0)], 0))
        dur += _covered_ns(work.start[pieces], work.end[pieces], apart, count)
        dur[unique(apart)] += idle_ns[unique(apart)]
    # Communication without any computation.
    comm = in_layers.kind == WORK_KINDS.index("comm")
    comm_end, comm_row = in_layers.end[comm], pass_row[comm]
    comm_start = exclusive(in_layers.start[comm], comm_end, comm_row)
    hidden_ns = work.union("computation").covered(comm_start, comm_end)
    exposed_ns = sums(comm_row, comm_end - comm_start - hidden_ns, count)
    # Work of a stage in whole steps, outside of all passes.
    alone = np.flatnonzero((layers.stage >= 0) & (layers.layer_pass < 0) & counted)
    if len(alone):
        alone = alone[steps_of(trace).only_whole().of_work[alone] >= 0]
    no_layer_ns = _covered_ns(work.start[alone], work.end[alone], layers.stage[alone], UNATTRIBUTED + 1)
    host_syncs = trace.once(blocking)
    calls, allocations = np.zeros((2, count, width), dtype=np.int64)
    blocked_ns = np.zeros(count, dtype=np.int64)
    inside = host_syncs.layer_pass >= 0
    cell = host_syncs.layer_pass[inside] * len(PHASES) + host_syncs.phase[inside]
    index = np.minimum(np.searchsorted(cells, cell), max(count - 1, 0))
    hit = cells[index] == cell if count else np.zeros(0, dtype=bool)
    cells_hit = index[hit], host_syncs.stage[inside][hit]
    np.add.at(calls, cells_hit, ~host_syncs.repeats[inside][hit])
    name = trace.arrays.name[host_syncs.event[inside][hit]]
    np.add.at(allocations, cells_hit, fitting(trace.arrays.names, name, ALLOCATION))
    np.add.at(blocked_ns, index[hit], host_syncs.blocked_ns[inside][hit])
    # Rows that the largest dispatch of each pass brought by its split sizes.
    received, largest = ([-1] * len(layers.passes) for _ in range(2))
    table = trace.tables["collectives"]
    messages, message_work = trace.once(token_messages)
    forward = (layers.stage[message_work] == DISPATCH) & (layers.phase[message_work] != BACKWARD)
    splits, size = table.texts("out_split", messages[forward]), table.array("out_bytes")[messages[forward]]
    numbers = layers.layer_pass[message_work[forward]].tolist()
    for number, split, out_bytes in zip(numbers, splits, size.tolist(), strict=True):
        parts = integers(split)
        if parts and out_bytes > largest[number]:
            received[number], largest[number] = sum(parts), out_bytes
    # All-to-alls of equal parts, which no split sizes ask for, have room for the worst case, unless the parts
    # are what was chosen.
    exchanges = trace.once(collective_kinds)[message_work] == collectives().index("all_to_all")
    exchanged = set(layers.layer_pass[message_work[forward & exchanges]].tolist())
    buffered = [
        each.grouped and number in exchanged and received[number] < 0 and each.chosen != sum(each.rows)
        for number, each in enumerate(layers.passes)
    ]
    steps, step_ns = 1, 0.0
    if layers.labels:
        windows = steps_of(trace)
        whole = windows.whole
        steps = max(len(whole), 1)
        step_ns = float(windows.edges[whole.stop] - windows.edges[whole.start]) / steps
    return RankPasses(
        rank=trace.meta.rank,
        passes=layers.passes,
        lacking="" if layers.passes else why_no_layer(trace),
        labels=layers.labels,
        steps=steps,
        step_ns=step_ns,
        number=cells // len(PHASES),
        phase=cells % len(PHASES),
        stage_ns=stage_ns.reshape(count, width),
        no_layer_ns=no_layer_ns,
        start=start,
        end=end,
        dur=dur,
        idle_ns=idle_ns,
        exposed_ns=exposed_ns,
        experts_end=experts_end,
        blocking=calls,
        allocations=allocations,
        blocked_ns=blocked_ns,
        received=received,
        buffered=buffered,
        has_noted_rows=bool(trace.meta.group_rows),
        group=expert_parallel_group(trace),
        moves_tokens=_moves_tokens(trace),
        framed=layers.framed,
        chunk_layers=layers.chunk_layers,
    )


def _covered_ns(start: Int, end: Int, group: Int, groups: int) -> Int:
    """Time that the intervals of each group cover, those that overlap once."""
    return sums(group, end - exclusive(start, end, group), groups)


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


def _moves_tokens(trace: Trace) -> bool:
    """Whether communication in MoE layers brings tokens, or takes them back.

    All-reduces do not, except those before the experts whose kernels alone say what they are.
    """
    work, layers = trace.work, trace.once(regions)
    in_layers = (work.kind == WORK_KINDS.index("comm")) & (layers.layer_pass >= 0)
    adds_up = trace.once(collective_kinds) == collectives().index("all_reduce")
    is_dispatch = (layers.stage == DISPATCH) & (layers.phase != BACKWARD)
    return bool((in_layers & (~adds_up | is_dispatch)).any())


def expert_parallel_group(trace: Trace) -> tuple[int, ...]:
    """The expert-parallel ranks: those of the largest group of a dispatch or combine.

    Where each rank computes all tokens that chose its own experts, and an all-reduce adds up what they give,
    it is the group of that.
    """
    table = trace.tables["collectives"]
    rows, _ = trace.once(token_messages)
    if not len(rows):
        layers = trace.once(regions)
        work = lookup(trace.arrays.places(trace.work.event), table.array("kernel_id"), -1)
        rows = np.flatnonzero(work >= 0)
        rows = rows[(layers.stage[work[rows]] == COMBINE) & (layers.phase[work[rows]] != BACKWARD)]
        shares = {layer_pass.ranks_of_experts for layer_pass in layers.passes} - {0, 1}
        rows = rows[np.isin(table.array("group_size")[rows], np.array([*shares], dtype=np.int64))]
    lists = {text: tuple(integers(text)) for text in set(table.texts("group_ranks", rows))}
    return max(lists.values(), key=len, default=())


def deduplicated_share(trace: Trace) -> float:
    """Copies of a token when each rank gets at most one, against one an expert; 1 where that is not known.

    With E experts spread evenly over P ranks and k of them chosen at random, a rank has none of the k with
    probability C(E - E/P, k) / C(E, k); P times the rest is the mean number of ranks a token goes to.
    """
    ranks, passes = len(expert_parallel_group(trace)), trace.once(regions).passes
    choices = ((each.experts, each.top_k) for each in passes)
    experts, top_k = next((choice for choice in choices if min(choice) > 0), (-1, -1))
    if top_k < 0:  # a fused router does not say
        experts, top_k = max((each.experts for each in passes), default=-1), _chosen_by_messages(trace)
    if min(experts, top_k) <= 0 or ranks < 2 or experts % ranks:
        return 1.0
    elsewhere = experts - experts // ranks
    copies = ranks * (1 - comb(elsewhere, top_k) / comb(experts, top_k))
    return copies / top_k


def _chosen_by_messages(trace: Trace) -> int:
    """Experts a token, where each dispatch sends that many copies of every token; -1 where none tells.

    Messages with as much for every rank may be buffers for the worst case.
    """
    layers, (rows, work) = trace.once(regions), trace.once(token_messages)
    is_sent = (layers.stage[work] == DISPATCH) & (layers.phase[work] == PHASES.index("forward"))
    texts = trace.tables["collectives"].texts("in_split", rows[is_sent])
    counts = set[int]()
    for text, number in zip(texts, layers.layer_pass[work[is_sent]].tolist(), strict=True):
        sent, each = integers(text), layers.passes[number]
        for width in {1, each.hidden} if len({*sent}) > 1 and each.tokens > 0 else ():
            copies, rest = divmod(sum(sent), each.tokens * max(width, 1))
            counts |= {copies} if not rest and 1 < copies <= each.experts else set()
    return counts.pop() if len(counts) == 1 else -1


def blocking(trace: Trace) -> Blocking:
    """The blocking calls of one rank; ask with `trace.once(blocking)`."""
    work, events = trace.work, trace.arrays
    layers = trace.once(regions)
    if not len(work.event):
        none = np.empty(0, dtype=np.int64)
        return Blocking(
            event=none,
            layer_pass=none,
            stage=none,
            phase=none,
            start=none,
            blocked_ns=none,
            repeats=none.astype(bool),
            until=none,
        )
    rows = np.flatnonzero(blocking_calls(trace, work))
    rows = rows[np.argsort(events.start[rows], kind="stable")]
    thread = threads(trace)
    # Of nested calls the outer one: it ends after those before it on its thread.
    reached = np.full(len(rows), np.iinfo(np.int64).min)
    for on_thread in rows_by_code(thread[rows]).values():
        reached[on_thread[1:]] = np.maximum.accumulate(events.end[rows[on_thread]])[:-1]
    rows = rows[events.end[rows] > reached]
    caller = work.host_call
    called = np.flatnonzero(caller >= 0)
    last, following, of_frame = (np.full(len(rows), -1, dtype=np.int64) for _ in range(3))
    for number, on_thread in rows_by_code(thread[rows]).items():
        thread_work = in_launch_order(trace, called[thread[caller[called]] == number])
        times = events.start[caller[thread_work]]
        before = np.searchsorted(times, events.end[rows[on_thread]], side="right") - 1
        last[on_thread] = lookup(thread_work, before, -1)
        after = np.where(before + 1 < len(thread_work), before + 1, -1)
        following[on_thread] = lookup(thread_work, after, -1)
    around = trace.once(enclosing_op)
    op = around[rows]
    is_sync, repeats = named(events, SYNCHRONIZE)[rows], np.zeros(len(rows), dtype=bool)
    for on_thread in rows_by_code(thread[rows]).values():
        earlier, later = on_thread[:-1], on_thread[1:]
        # A blocking call that launches work is a copy, and a synchronize with no launch since waits for it.
        is_copy = (last[earlier] >= 0) & (lookup(caller, last[earlier], -1) == rows[earlier])
        same_op = (op[later] >= 0) & (op[earlier] == op[later])
        repeats[later] = is_copy & same_op & is_sync[later] & (last[earlier] == last[later])
    if work.cpu_only:
        # Where the host does the work itself there is no copy to tell by, and a part of a layer may begin
        # with a read: then it belongs to the work behind. Its stage is that of its frame, unless the read is
        # work of its own.
        names = [stage_of(name) for name in events.names]
        code = np.array([STAGES.index(name) if name else -1 for name in names], dtype=np.int64)[events.name]
        frames = nearest(events.parent, events.depth, (code >= 0) & events.where("annotation", "python"))
        frame = np.where(events.places(work.event)[rows] < 0, frames[rows], -1)
        is_before = (last >= 0) & (work.start[np.maximum(last, 0)] >= events.start[frame])
        is_after = (following >= 0) & (work.start[np.maximum(following, 0)] < events.end[frame])
        last = np.where((frame >= 0) & ~is_before & is_after, following, last)
        of_frame = lookup(code, frame, -1)
    else:
        # A call belongs to the work of its own op, else to the last copy to the host: sizes are often copied
        # beside other work, and waited for when that has been launched.
        by_own_op = (op >= 0) & (lookup(around, lookup(caller, last, -1), -1) == op)
        is_copy = fitting(work.names, work.name, HOST_COPY) & ~work.is_kernel
        copies = np.flatnonzero(is_copy & (caller >= 0))
        # What an op copies and waits for itself, nobody else waits for.
        waits = np.zeros(len(events.start), dtype=bool)
        waits[op[op >= 0]] = True
        copies = in_launch_order(trace, copies[~lookup(waits, around[caller[copies]], False)])
        index = np.searchsorted(events.start[caller[copies]], events.end[rows], side="right") - 1
        copied, layer_pass = lookup(copies, index, -1), layers.layer_pass
        beside = layer_pass[np.maximum(copied, 0)] == layer_pass[np.maximum(last, 0)]
        last = np.where((copied >= 0) & (last >= 0) & beside & ~by_own_op, copied, last)
    start, end = events.start[rows], events.end[rows]
    until = np.where(following >= 0, np.maximum(work.start[following], end), end)

    def of(values: Int) -> Int:
        return lookup(values, last, -1)

    layer_pass = of(layers.layer_pass)
    stage = np.where((layer_pass >= 0) & (of_frame >= 0), of_frame, of(layers.stage))
    return Blocking(
        event=rows,
        layer_pass=layer_pass,
        stage=stage,
        phase=of(layers.phase),
        start=start,
        blocked_ns=end - start,
        repeats=repeats,
        until=until,
    )

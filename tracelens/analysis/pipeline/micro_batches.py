"""Forward and backward of each micro-batch on one rank of a pipeline: the part that travels.

They are read from scopes that name them, else from the autograd graph (which backward ran when on the host,
and which forward made its nodes), else from the messages between the stages. The graph also tells whether
sends and receives that nothing names are a pipeline's.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from tracelens.analysis.comm import POINT_TO_POINT
from tracelens.analysis.common import integers
from tracelens.arrays import Bool, Float, Int, isin, lookup, ordered, unique
from tracelens.table import nearest
from tracelens.trace import STEP_MARK, Scope, Trace, Union, Work, forward_ops, gpu_work, steps_of, union

FORWARD, BACKWARD = "forward", "backward"
_OPTIMIZER = "Optimizer."
_GEMMS = ("gemm", "grouped_gemm")


class MicrobatchPass(NamedTuple):
    """One micro-batch passing forward or backward through one chunk of the model."""

    step: str  # name of its step
    phase: str  # FORWARD or BACKWARD
    virtual: int  # number of the chunk in the whole model, from 0; -1 if not known
    micro_batch: int  # number, -1 if not known
    start: int  # of its first GPU work, ns
    end: int  # of its last GPU work
    busy_ns: int  # time in which its GPU work runs
    launched: int  # when the host launched the first of it, ns by the rank's own clock
    # Number of the forward on this rank whose graph it made or runs, -1 if not known. Two backwards with one
    # forward are the gradients of its inputs and those of its weights.
    forward: int = -1


class StageMessage(Struct, frozen=True):
    """A send or receive of data."""

    step: str  # name of its step
    time: int  # when the host asked for it, ns by the rank's own clock
    is_send: bool  # sent by this rank
    peer: int  # the rank at the other end, -1 if not recorded


class StepWindow(Struct, frozen=True):
    """When a step ran on the GPU, ns."""

    label: str
    start: int
    end: int


class Passes(Struct, frozen=True):
    """What one rank knows of its pipeline."""

    rank: int  # of the trace
    staged: bool  # whether anything tells that it is part of a pipeline
    pipeline_ranks: tuple[int, ...]  # ranks of its pipeline, one a stage; empty where the trace does not say
    spans: list[MicrobatchPass]  # in the order in which the host launched them, times by the rank's clock
    p2p: Union  # when its sends and receives ran
    other: Union  # when other GPU work ran that is in no span
    messages: list[StageMessage]  # to and from other stages, in the order in which the host asked for them
    steps: list[StepWindow]  # windows of the steps
    # Where nothing but its passes says that it is part of a pipeline; `pipeline_ranks` is empty then.
    neighbors: Neighbors | None = None


class Neighbors(NamedTuple):
    """The ranks with which one rank of a pipeline exchanges activations and their gradients."""

    previous: int  # its first input comes from there; -1 for the rank with the first stage
    following: int  # its first output goes there; -1 for the rank with the last stage
    alone: bool  # whether there are no ranks but this one and its neighbor


_NODE = "autograd::engine::evaluate_function"


class Graph(Struct, frozen=True):
    """The host's time cut into cells, and the cells in which backwards and forwards ran.

    A backward whose forward is not recorded has the forward -1. Two backwards with one forward are the
    gradients of its inputs and those of its weights (zero-bubble schedules).
    """

    borders: Int  # ns of the host, ascending: cell c is [borders[c - 1], borders[c])
    backward: Int  # cell of each backward, in order of time
    forward: Int  # cell of its forward
    made: Int  # when the first op began that made one of its nodes, ns
    share: Float  # of its nodes, those that were made there; the others behind a message or another pass


# Numbers become sizes of tables: no model has ten thousand stages.
_GRAMMARS = (
    # torch.distributed.pipelining: stage, action, micro-batch; I and W are the two halves of a backward.
    r"PP:(?P<stage>[0-9]{1,4})(?P<kind>[FBIW])(?P<micro_batch>[0-9]{1,6})",
    # Its schedules of one stage, and scopes that programs write themselves.
    r"(?P<kind>Forward|Backward|F|B)[ _]?(?P<micro_batch>[0-9]{1,6})",
    # The bundled workload, with and without a pipeline: chunk 0 may be the whole model.
    r"mb(?P<micro_batch>[0-9]{1,6})\.chunk(?P<stage>[0-9]{1,4})\.(?P<kind>[FB])",
    r"(?P<kind>forward|backward)[ _-]step(?:\D{0,2}(?P<micro_batch>[0-9]{1,6}))?",
    # Python frames of Megatron-LM.
    r".*pipeline_parallel/schedules\.py\(\d+\): (?P<kind>forward|backward)_step",
)
_SCOPE = [re.compile(text) for text in _GRAMMARS]
_PAIR = re.compile(r"PP:\((?P<actions>.*)\)OVERLAP_F_B")


class Scopes(Struct, frozen=True):
    """Scopes of micro-batches in order of time, none inside another.

    A scope of an overlapped forward and backward stands twice, with the same times.
    """

    start: Int  # ns
    end: Int  # ns
    backward: Bool  # whether it is a backward
    virtual: Int  # number of the stage in the whole model, -1 where the name does not say
    micro_batch: Int  # number, -1 where the name does not say
    pipelined: bool  # whether one of them has the name of a part of a pipeline

    @property
    def usable(self) -> bool:
        """Whether both phases are named: one alone would leave the other without spans."""
        return bool(self.backward.any() and not self.backward.all())

    @property
    def staged(self) -> bool:
        """Whether they say the stage, and so that there is a pipeline."""
        return self.usable and self.pipelined and bool((self.virtual >= 0).all())


_PIPELINE = re.compile(r"pipeline|(^|_)pp($|_)", re.IGNORECASE)
# Groups whose collectives run beside the backward of whatever micro-batch is the last one.
_GRADIENTS = re.compile(r"data_parallel|distributed_optimizer|fsdp|(^|_)e?dp($|_)", re.IGNORECASE)
# Groups whose name says that they are for something else.
_OTHERS = re.compile(r"parallel|optimizer|fsdp|(^|_)(e?[dt]p|[ces]p)($|_)", re.IGNORECASE)
_SHAPES = "Long"  # messages of this type tell the shape of the one that follows
_MADE_TOGETHER = 0.75
"""Share of a graph's nodes made between two messages from which they are a forward's; the last stage may
scale its loss behind a message. Rings and exchanges of tokens send in the middle of each layer."""


class Messages(Struct, frozen=True):
    """Sends and receives of a pipeline, one element a message."""

    time: Int  # when the host asked for it, ns
    kernel: Int  # event row of its kernel, -1 if not in the trace; a batch of messages shares one
    is_send: Bool  # sent by this rank
    is_data: Bool  # no message of shapes
    peer: Int  # the rank at the other end, -1 where it is not recorded
    group_ranks: tuple[int, ...]  # the ranks of the pipeline, empty where the trace does not say
    neighbors: Neighbors | None = None  # where nothing but the passes says that there is a pipeline


def passes(trace: Trace, *, scope: Scope = "all") -> Passes:
    """The spans of one rank; none where nothing tells that it is part of a pipeline.

    Scopes that name them decide (pipeline_scopes), else the autograd graph (autograd_graph). Where neither is
    recorded, work of the autograd engine is backward, other work is forward, and each message to or from
    another stage, each step mark and each optimizer step ends a span.
    """
    return trace.once(all_passes) if scope == "all" else _passes(trace, gpu_work(trace, scope))


def all_passes(trace: Trace) -> Passes:
    """The same of all GPU work; with `trace.once`."""
    return _passes(trace, gpu_work(trace))


def _passes(trace: Trace, work: Work) -> Passes:
    scopes = trace.once(pipeline_scopes)
    messages = stage_messages(trace)
    empty = union(np.empty(0, np.int64), np.empty(0, np.int64))
    if not len(work.event) or not (len(messages.time) or scopes.staged):
        return Passes(
            rank=trace.meta.rank,
            staged=False,
            pipeline_ranks=(),
            spans=[],
            p2p=empty,
            other=empty,
            messages=[],
            steps=[],
        )
    is_p2p = np.isin(work.event, messages.kernel)
    host = lookup(trace.arrays.start, work.host_call, -1)
    counted = (work.host_call >= 0) & ~is_p2p & ~gradient_sync(trace, work)
    backward = lookup(in_autograd(trace), work.host_call, False)
    events = trace.arrays
    ends = _step_ends(trace)
    cuts = unique(np.concatenate((messages.time, ends)))
    graph = None if scopes.usable else autograd_graph(trace, cuts)
    if scopes.usable:
        # Number of the scope that each piece of work was launched in. Two scopes that share their times are
        # the forward and the backward of an overlapped pair: there the phase of the work decides.
        last = np.searchsorted(scopes.start, host, side="right") - 1
        scope = np.maximum(last, 0)
        inside = (last >= 0) & (host < scopes.end[scope])
        pair = inside & (last > 0) & (scopes.start[np.maximum(last - 1, 0)] == scopes.start[scope])
        swap = pair & (scopes.backward[scope] != backward)
        key = np.where(inside, last - swap, -1)
    elif graph is not None:
        # Number of the span of each piece of work, -1 for what is in no cell of a forward or backward.
        cell = np.searchsorted(graph.borders, host, side="right")
        valid = np.where(backward, np.isin(cell, graph.backward), np.isin(cell, graph.forward))
        key = np.where(valid, cell * 2 + backward, -1)
        gemm = np.isin(work.category, [work.categories.index(name) for name in _GEMMS])
        rows = np.flatnonzero(gemm & ~backward & (work.host_call >= 0))
        until = _put_off_until(cell[rows], host[rows], graph, ends)
        key = np.where(~backward & (host <= until[cell]), cell * 2 + 1, key)
    else:
        key = np.searchsorted(cuts, host, side="right") * 2 + backward
    key = np.where(counted, key, -1)
    # Windows of the steps, and the times at which the host went on to the next one. Without step marks a
    # step ends with the optimizer's.
    windows = steps_of(trace)
    if windows.marked or trace.window is not None:
        edges, borders, labels = windows.edges, windows.marks[1:-1], windows.labels
    else:
        codes = [code for code, name in enumerate(events.names) if name.startswith(_OPTIMIZER + "step")]
        updates = np.sort(events.end[np.isin(events.name, codes) & events.where("annotation")])
        low, high = int(windows.edges[0]), int(windows.edges[-1])
        updates = updates[(updates > low) & (updates < high)]
        # Several optimizers may share a step: only after more work of micro-batches comes another one.
        busy = np.sort(host[backward])
        later = np.searchsorted(busy, updates)
        borders = updates[later < np.append(later[1:], len(busy))]
        edges = np.concatenate(([low], borders, [high]))
        labels = windows.labels if not len(borders) else [f"update {n}" for n in range(1, len(edges))]
    steps = [StepWindow(label, *span) for label, span in zip(labels, pairwise(edges.tolist()), strict=True)]
    # The spans, each of the work with one key.
    spans = []
    in_span = key >= 0
    rows = np.flatnonzero(in_span)
    rows = rows[ordered(key[rows], host[rows])]
    for of_span in np.split(rows, np.flatnonzero(np.diff(key[rows])) + 1) if len(rows) else []:
        number, time = int(key[of_span[0]]), int(host[of_span[0]])
        ran = union(work.start[of_span], work.end[of_span])
        if not ran.total:
            in_span[of_span] = False
            continue
        is_backward, virtual, micro_batch, forward = number % 2 == 1, -1, -1, -1
        if scopes.usable:
            is_backward = bool(scopes.backward[number])
            virtual, micro_batch = int(scopes.virtual[number]), int(scopes.micro_batch[number])
        if graph is not None:
            forward = number // 2
            if is_backward:
                forward = int(graph.forward[np.searchsorted(graph.backward, forward, side="right") - 1])
        spans.append(
            MicrobatchPass(
                step=steps[int(_step_at(np.array([time]), borders)[0])].label,
                phase=BACKWARD if is_backward else FORWARD,
                virtual=virtual,
                micro_batch=micro_batch,
                start=int(ran.start[0]),
                end=int(ran.end[-1]),
                busy_ns=ran.total,
                launched=time,
                forward=forward,
            )
        )
    outside = work.take(~is_p2p & ~in_span)
    data = messages.is_data
    times, peer = messages.time[data], messages.peer[data].tolist()
    labels = [steps[index].label for index in _step_at(times, borders).tolist()]
    parts = zip(labels, times.tolist(), messages.is_send[data].tolist(), peer, strict=True)
    return Passes(
        rank=trace.meta.rank,
        staged=True,
        pipeline_ranks=messages.group_ranks,
        spans=sorted(spans, key=lambda span: span.launched),
        p2p=union(work.start[is_p2p], work.end[is_p2p]),
        other=union(outside.start, outside.end),
        messages=[StageMessage(*message) for message in parts],
        steps=steps,
        neighbors=messages.neighbors,
    )


def _step_ends(trace: Trace) -> Int:
    """Begins and ends of step marks and optimizer steps, between which the passes of a step lie."""
    events = trace.arrays
    marks = [c for c, name in enumerate(events.names) if STEP_MARK.match(name) or name.startswith(_OPTIMIZER)]
    rows = np.flatnonzero(np.isin(events.name, marks) & events.where("annotation"))
    return unique(np.concatenate((events.start[rows], events.end[rows])))


def _put_off_until(cell: Int, host: Int, graph: Graph, ends: Int) -> Int:
    """When the host launched the last of the weight gradients that it had put off, in each cell of the graph.

    They are GEMMs (`cell` and `host` time of each launch) that make no node, between a backward and a later
    pass of the same step, whose ends are `ends`; in the cell of a forward those before its first node.
    Behind the last pass, as with those of the embedding, they are of no micro-batch.
    """
    forward, made = (values[graph.forward >= 0] for values in (graph.forward, graph.made))
    first = np.full(len(ends) + 1, np.iinfo(np.int64).max)
    last = np.full(len(ends) + 1, -1)
    np.minimum.at(first, _step_at(graph.borders[graph.backward - 1], ends), graph.backward)
    for passes_of_phase in (graph.backward, forward):
        np.maximum.at(last, _step_at(graph.borders[passes_of_phase - 1], ends), passes_of_phase)
    step = _step_at(host, ends)
    first_node = np.full(len(graph.borders) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first_node, forward, made)
    put_off = (first[step] < cell) & (cell <= last[step]) & (host < first_node[cell])
    until = np.full(len(graph.borders) + 1, np.iinfo(np.int64).min)
    np.maximum.at(until, cell[put_off], host[put_off])
    return until


def _step_at(times: Int, cuts: Int) -> Int:
    return np.searchsorted(cuts, times, side="right")


def in_autograd(trace: Trace) -> Bool:
    """Which events the autograd engine ran."""
    events = trace.arrays
    return nearest(events.parent, events.depth, _is_node(trace)) >= 0


def _is_node(trace: Trace) -> Bool:
    events, ops = trace.arrays, trace.tables["ops"]
    is_node: Bool = events.named(lambda name: name.startswith(_NODE)) & events.where("op")
    is_node[ops.array("event_id")[ops.array("forward_thread") > 0]] = True
    return is_node


def autograd_graph(trace: Trace, cuts: Int) -> Graph | None:
    """The backwards of a trace with their forwards; None where no forward op of a backward is recorded.

    A backward is what the engine runs while the host neither makes nodes nor sends or receives. Its forward
    is the cell in which most of its nodes were made: other ops of the same graph, such as the scaling of
    the loss, may stand behind a message or another pass, and are no forward. The host ended a pass at each of
    `cuts`: messages, step marks and optimizer steps, ascending.
    """
    events = trace.arrays
    is_node = _is_node(trace)
    node = np.flatnonzero(is_node)
    node = node[np.argsort(events.start[node], kind="stable")]
    # The op that made each node, and its sequence number; -1 where it is not recorded. Nodes that the engine
    # itself made, when it recomputed a forward, have no maker.
    ops = trace.tables["ops"]
    row, sequence, thread = (ops.array(name) for name in ("event_id", "sequence", "forward_thread"))
    maker_of = forward_ops(row, sequence, thread, events.tid[row], events.start[row])
    maker_of[lookup(in_autograd(trace), maker_of, False)] = -1
    index = events.places(row)[node]
    maker, sequence = lookup(maker_of, index, -1), lookup(sequence, index, -1)
    if not (maker >= 0).any():
        return None
    made = events.start[maker]
    # With which of the nodes, in order of time, a backward begins. The engine runs the nodes of a graph
    # from the highest number down, so that a number above the first one belongs to the next graph, also
    # where nothing on the host separates the two.
    is_made = maker >= 0
    run = np.searchsorted(np.sort(np.concatenate((cuts, made[is_made]))), events.start[node], side="right")
    width = int(sequence.max()) + 2
    level = run * width + np.where(is_made, sequence + 1, 0)
    highest = np.append(-1, np.maximum.accumulate(level)[:-1])
    begins: Bool = is_made & (level > highest) & (highest > run * width)
    begins |= np.append(True, np.diff(run) > 0)
    number = np.cumsum(begins) - 1
    # The event around a node may have no number: a backward begins with the outer one of the two.
    first = node[begins]
    first = np.where(lookup(is_node, events.parent[first], False), events.parent[first], first)
    start = events.start[first]
    ends = np.zeros(len(start), dtype=np.int64)
    np.maximum.at(ends, number, events.end[node])
    ends[:-1] = np.minimum(ends[:-1], start[1:])
    borders = unique(np.concatenate((cuts, start, ends)))
    # Borders between forwards that nothing else separates: of several graphs that one cell made.
    backward_of, made_of, sequence_of = (values[is_made] for values in (number, made, sequence))
    cell = np.searchsorted(borders, made_of, side="right")
    main = _most_frequent(backward_of, cell, int(backward_of.max()) + 1)[backward_of] == cell
    made_of, sequence_of, cell = made_of[main], sequence_of[main], cell[main]
    graphs, graph = np.unique(backward_of[main], return_inverse=True)
    begin, lowest, graph_cell = (np.full(len(graphs), np.iinfo(np.int64).max) for _ in range(3))
    highest = np.full(len(graphs), -1)
    np.minimum.at(begin, graph, made_of)
    np.minimum.at(lowest, graph, sequence_of)
    np.maximum.at(highest, graph, sequence_of)
    graph_cell[graph] = cell
    order = np.lexsort((lowest, graph_cell))
    begin, lowest, highest, graph_cell = (values[order] for values in (begin, lowest, highest, graph_cell))
    # Two backwards of one forward have some of its nodes each: their numbers overlap.
    following = begin[1:][(np.diff(graph_cell) == 0) & (lowest[1:] > highest[:-1])]
    borders = unique(np.concatenate((borders, following)))
    cell = np.searchsorted(borders, made, side="right")
    forward = _most_frequent(number[is_made], cell[is_made], len(start))
    inside = is_made & (cell == forward[number])
    first_made = np.full(len(start), np.iinfo(np.int64).max)
    np.minimum.at(first_made, number[inside], made[inside])
    nodes, nodes_inside = (np.bincount(number[rows], minlength=len(start)) for rows in (is_made, inside))
    share = nodes_inside / np.maximum(nodes, 1)
    return Graph(borders, np.searchsorted(borders, start, side="right"), forward, first_made, share)


def _most_frequent(group: Int, values: Int, count: int) -> Int:
    """The value that each group has most often, the lowest of a tie; -1 for groups without values."""
    pairs, times = np.unique(np.stack((group, values)), axis=1, return_counts=True)
    order = np.lexsort((-pairs[1], times, pairs[0]))
    result = np.full(count, -1, dtype=np.int64)
    result[pairs[0][order]] = pairs[1][order]
    return result


def pipeline_scopes(trace: Trace) -> Scopes:
    """The scopes of micro-batches of one rank; with `trace.once`."""
    events = trace.arrays
    # What a scope of a name does: for each action whether it is a backward, stage, micro-batch, whether the
    # name is one of a part of a pipeline.
    actions: dict[int, list[tuple[bool, int, int, bool]]] = {}
    for code, name in enumerate(events.names):
        pair = _PAIR.fullmatch(name)
        for action in [f"PP:{part}" for part in pair["actions"].split(";")] if pair else [name]:
            matches = (grammar.fullmatch(action) for grammar in _SCOPE)
            if match := next(filter(None, matches), None):
                parts = match.groupdict()
                stage, micro_batch = (int(parts.get(key) or -1) for key in ("stage", "micro_batch"))
                pipelined = action.startswith("PP:") or stage > 0
                of_action = (parts["kind"][0] not in "Ff", stage, micro_batch, pipelined)
                actions.setdefault(code, []).append(of_action)
    rows = np.flatnonzero(np.isin(events.name, list(actions)) & events.where("annotation", "python"))
    rows = rows[ordered(events.start[rows], -events.end[rows])]
    rows_of_scopes: list[tuple[int, int, bool, int, int, bool]] = []
    reached = int(events.start[rows[0]]) if len(rows) else 0
    for row in rows.tolist():
        start, end = int(events.start[row]), int(events.end[row])
        if start < reached:  # inside another, as a model's own scope in that of the schedule
            continue
        reached = end
        rows_of_scopes += [(start, end, *action) for action in actions[int(events.name[row])]]
    table = np.array(rows_of_scopes, dtype=np.int64).reshape(-1, 6)
    return Scopes(
        table[:, 0], table[:, 1], table[:, 2] > 0, table[:, 3], table[:, 4], bool(table[:, 5].any())
    )


def stage_messages(trace: Trace, *, unnamed: bool | None = None) -> Messages:
    """Of groups that are named a pipeline, and of the group of all ranks beside them.

    With two stages Megatron-LM sends one way through the group of all ranks, so that both ways overlap.
    Experts and attention over several ranks send and receive as well, in groups of their own, so where no
    group is named a pipeline, something else has to say that there is one: `unnamed`, by default names of
    scopes, or passes that exchange their inputs and outputs (`unnamed_messages`).
    """
    table = trace.tables["collectives"]
    rows = np.flatnonzero(table.coded("collective").mask(POINT_TO_POINT.__contains__))
    names = table.texts("group_description", rows)
    named = np.array([bool(_PIPELINE.search(name)) for name in names], dtype=bool)
    nameless = np.array([name in ("", "undefined", "default_pg") for name in names], dtype=bool)
    if unnamed is None:
        unnamed = trace.once(pipeline_scopes).usable
        if len(rows) and not unnamed and not named.any() and (found := trace.once(unnamed_messages)):
            return _messages(trace, found.rows, (), found.neighbors)
    lists = [integers(text) for text in table.texts("group_ranks", rows[named] if named.any() else rows)]
    group_ranks = next((tuple(ranks) for ranks in lists if ranks), ())
    return _messages(trace, rows[named | (nameless & (named.any() or unnamed))], group_ranks)


def _messages(
    trace: Trace, rows: Int, group_ranks: tuple[int, ...], neighbors: Neighbors | None = None
) -> Messages:
    """The sends and receives in some rows of the table of collectives."""
    table = trace.tables["collectives"]
    time = trace.arrays.start[_calls(trace, rows)]
    if trace.window is not None:
        inside = (time >= trace.window.host_start) & (time < trace.window.host_end)
        rows, time = rows[inside], time[inside]
    rows, time = (values[np.argsort(time, kind="stable")] for values in (rows, time))
    peer = table.array("peer")[rows]
    if len(group_ranks) == 2 and trace.meta.rank in group_ranks:
        peer = np.where(peer < 0, sum(group_ranks) - trace.meta.rank, peer)
    return Messages(
        time=time,
        kernel=table.array("kernel_id")[rows],
        is_send=np.array([kind == "send" for kind in table.texts("collective", rows)], dtype=bool),
        is_data=np.array([dtype != _SHAPES for dtype in table.texts("dtype", rows)], dtype=bool),
        peer=peer,
        group_ranks=group_ranks,
        neighbors=neighbors,
    )


def _calls(trace: Trace, rows: Int) -> Int:
    """Event rows by which the host asked for messages: of records that only the kernel bears its launch."""
    record = trace.tables["collectives"].array("event_id")[rows]
    work = trace.work
    call = lookup(work.host_call, lookup(trace.arrays.places(work.event), record, -1), -1)
    return np.where(call >= 0, call, record)


class UnnamedMessages(Struct, frozen=True):
    """Sends and receives that carry what passes of micro-batches need and make."""

    rows: Int  # of the table of collectives
    neighbors: Neighbors


def unnamed_messages(trace: Trace) -> UnnamedMessages | None:
    """Sends and receives of a pipeline without a name, of all groups or else of one; with `trace.once`.

    Groups in which a backward sends or receives while it runs are not the pipeline's.
    """
    table = trace.tables["collectives"]
    is_message = table.coded("collective").mask(POINT_TO_POINT.__contains__)
    rows = np.flatnonzero(is_message & ~table.coded("group_description").mask(_OTHERS.search))
    groups = np.array(table.texts("group", rows), dtype=str)
    inside = lookup(in_autograd(trace), _calls(trace, rows), False)
    between = ~np.isin(groups, groups[inside])
    rows, groups = rows[between], groups[between]
    distinct = dict.fromkeys(groups.tolist())
    choices = [rows] if distinct else []
    choices += [rows[groups == group] for group in distinct if len(distinct) > 1]
    found = ((choice, _neighbors(trace, choice)) for choice in choices)
    return next((UnnamedMessages(choice, neighbors) for choice, neighbors in found if neighbors), None)


def _neighbors(trace: Trace, rows: Int) -> Neighbors | None:
    """Who is at the other end of sends and receives; None where they are not between stages of a pipeline.

    A stage gets something for each backward, an input of its forward or its gradient, and sends something of
    each forward, its output or the gradient of its input. It does so between the passes. Attention in a ring
    and exchanges of tokens send within them, gradients that go round a ring follow all backwards.
    """
    messages = _messages(trace, rows, (trace.meta.rank, 1 - trace.meta.rank) if _is_pair(trace) else ())
    if (messages.peer < 0).any():
        return None
    ends = _step_ends(trace)
    graph = autograd_graph(trace, unique(np.concatenate((messages.time, ends))))
    if graph is None or graph.share[graph.forward >= 0].min(initial=1) < _MADE_TOGETHER:
        return None
    data = messages.is_data
    time, is_send, peer = messages.time[data], messages.is_send[data], messages.peer[data]
    cell_begin = np.append(np.iinfo(np.int64).min, graph.borders)
    begin = cell_begin[graph.backward]
    step_of_message, step_of_backward = _step_at(time, ends), _step_at(begin, ends)
    neighbors = set()
    for step in unique(step_of_message).tolist():
        of_step = step_of_backward == step
        forward, first = np.unique(graph.forward[of_step], return_index=True)
        # A step of which a part is not recorded has backwards without forwards.
        if not len(forward) or forward[0] < 0:
            continue
        asked, sent, peers = (values[step_of_message == step] for values in (time, is_send, peer))
        backward = np.sort(begin[of_step][first])
        received, sends = asked[~sent], asked[sent]
        order = np.arange(1, len(forward) + 1)
        inputs = np.searchsorted(received, backward, side="right")
        outputs = len(sends) - np.searchsorted(sends, cell_begin[forward])
        if (inputs < order).any() or (outputs < order[::-1]).any():
            return None
        fed = received[0] <= cell_begin[forward[0]]
        feeds = sends[0] < backward[0]
        neighbors.add(
            Neighbors(
                previous=int(peers[~sent][0]) if fed else -1,
                following=int(peers[sent][0]) if feeds else -1,
                alone=_is_pair(trace),
            )
        )
    return neighbors.pop() if len(neighbors) == 1 else None


def _is_pair(trace: Trace) -> bool:
    return trace.meta.world_size == 2 and trace.meta.rank in (0, 1)


def gradient_sync(trace: Trace, work: Work) -> Bool:
    """Which work is communication among the replicas of a stage."""
    table = trace.tables["collectives"]
    kernel = table.array("kernel_id")
    return isin(work.event, kernel[table.coded("group_description").mask(_GRADIENTS.search)])

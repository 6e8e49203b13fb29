"""Forward and backward of each micro-batch on one rank of a pipeline: the part that travels."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tracelens.analysis.pipeline.graph import Graph, autograd_graph, in_autograd
from tracelens.analysis.pipeline.pass_scopes import Scopes, pipeline_scopes
from tracelens.analysis.pipeline.stage_messages import Messages, gradient_sync, stage_messages
from tracelens.arrays import Bool, Int, lookup
from tracelens.trace import STEP_MARK, Scope, Trace, Union, Work, gpu_work, steps_of, union

FORWARD, BACKWARD = "forward", "backward"
_OPTIMIZER = "Optimizer."
_GEMMS = ("gemm", "grouped_gemm")


class Span(NamedTuple):
    """One micro-batch passing forward or backward through one chunk of the model.

    Attributes:
        step: name of its step.
        phase: FORWARD or BACKWARD.
        virtual: number of the chunk in the whole model, from 0; -1 if not known.
        microbatch: number, -1 if not known.
        start: of its first GPU work, ns.
        end: of its last GPU work.
        busy_ns: time in which its GPU work runs.
        launched: when the host launched the first of it, ns by the rank's own clock.
        forward: number of the forward on this rank whose graph it made or runs, -1 if not known. Two
            backwards with one forward are the gradients of its inputs and those of its weights.
    """

    step: str
    phase: str
    virtual: int
    microbatch: int
    start: int
    end: int
    busy_ns: int
    launched: int
    forward: int = -1


class Message(NamedTuple):
    """A send or receive of data.

    Attributes:
        step: name of its step.
        time: when the host asked for it, ns by the rank's own clock.
        is_send: sent by this rank.
        peer: the rank at the other end, -1 if not recorded.
    """

    step: str
    time: int
    is_send: bool
    peer: int


class StepWindow(NamedTuple):
    """When a step ran on the GPU, ns."""

    label: str
    start: int
    end: int


class Passes(NamedTuple):
    """What one rank knows of its pipeline.

    Attributes:
        rank: of the trace.
        staged: whether anything tells that it is part of a pipeline.
        pipeline_ranks: ranks of its pipeline, one a stage; empty where the trace does not say.
        spans: in the order in which the host launched them, times by the rank's clock.
        p2p: when its sends and receives ran.
        other: when other GPU work ran that is in no span.
        messages: to and from other stages, in the order in which the host asked for them.
        steps: windows of the steps.
    """

    rank: int
    staged: bool
    pipeline_ranks: tuple[int, ...]
    spans: list[Span]
    p2p: Union
    other: Union
    messages: list[Message]
    steps: list[StepWindow]


def passes(trace: Trace, *, scope: Scope = "all") -> Passes:
    """The spans of one rank; none where nothing tells that it is part of a pipeline.

    Scopes that name them decide, see pass_scopes, else the autograd graph, see graph. Where neither is
    recorded, work of the autograd engine is backward, other work is forward, and each message to or from
    another stage, each step mark and each optimizer step ends a span.

    Args:
        trace: of the rank.
        scope: which GPU work counts, see trace.Scope.
    """
    return trace.once(all_passes) if scope == "all" else _passes(trace, gpu_work(trace, scope))


def all_passes(trace: Trace) -> Passes:
    """The same of all GPU work; with `trace.once`."""
    return _passes(trace, gpu_work(trace))


def _passes(trace: Trace, work: Work) -> Passes:
    scopes = pipeline_scopes(trace)
    messages = stage_messages(trace, unnamed=scopes.usable)
    empty = union(np.empty(0, np.int64), np.empty(0, np.int64))
    if not len(work.event) or not (len(messages.time) or scopes.staged):
        return Passes(trace.meta.rank, False, (), [], empty, empty, [], [])
    is_p2p = np.isin(work.event, messages.kernel)
    host = _host_times(trace, work)
    counted = (work.host_call >= 0) & ~is_p2p & ~gradient_sync(trace, work)
    backward = _is_backward(trace, work)
    ends = _step_ends(trace)
    cuts = np.union1d(messages.time, ends)
    graph = None if scopes.usable else autograd_graph(trace, cuts)
    if scopes.usable:
        key = _by_scope(host, backward, scopes)
    elif graph is not None:
        key = _by_graph(work, host, backward, graph, ends)
    else:
        key = np.searchsorted(cuts, host, side="right") * 2 + backward
    key = np.where(counted, key, -1)
    steps, borders = _steps(trace, work)
    spans, in_span = _spans(work, host, key, scopes, steps, borders)
    if graph is not None:
        spans = [(number, span._replace(forward=_forward_of(number, graph))) for number, span in spans]
    outside = work.take(~is_p2p & ~in_span)
    return Passes(
        trace.meta.rank,
        True,
        messages.group_ranks,
        [span for _, span in spans],
        union(work.start[is_p2p], work.end[is_p2p]),
        union(outside.start, outside.end),
        _messages(messages, steps, borders),
        steps,
    )


def _messages(messages: Messages, steps: Sequence[StepWindow], cuts: Int) -> list[Message]:
    data = messages.is_data
    time, peer = messages.time[data], messages.peer[data].tolist()
    labels = [steps[index].label for index in _step_at(time, cuts).tolist()]
    parts = zip(labels, time.tolist(), messages.is_send[data].tolist(), peer, strict=True)
    return [Message(*message) for message in parts]


def _host_times(trace: Trace, work: Work) -> Int:
    anchor = work.host_call
    return lookup(trace.arrays.start, anchor, -1)


def _is_backward(trace: Trace, work: Work) -> Bool:
    """Whether the autograd engine launched it."""
    anchor = work.host_call
    return lookup(in_autograd(trace), anchor, False)


def _by_scope(host: Int, backward: Bool, scopes: Scopes) -> Int:
    """Number of the scope that each piece of work was launched in; of a scope of both phases by its phase."""
    scope = np.searchsorted(scopes.start, host, side="right") - 1
    inside = (scope >= 0) & (host < scopes.end[np.maximum(scope, 0)])
    # Two scopes that share their times are the forward and the backward of an overlapped pair.
    pair = (
        inside & (scope > 0) & (scopes.start[np.maximum(scope - 1, 0)] == scopes.start[np.maximum(scope, 0)])
    )
    swap = pair & (scopes.backward[np.maximum(scope, 0)] != backward)
    return np.where(inside, scope - swap, -1)


def _step_ends(trace: Trace) -> Int:
    """Begins and ends of step marks and optimizer steps, between which the passes of a step lie."""
    events = trace.arrays
    marks = [c for c, name in enumerate(events.names) if STEP_MARK.match(name) or name.startswith(_OPTIMIZER)]
    rows = np.flatnonzero(np.isin(events.name, marks) & events.where("annotation"))
    return np.union1d(events.start[rows], events.end[rows])


def _by_graph(work: Work, host: Int, backward: Bool, graph: Graph, ends: Int) -> Int:
    """Number of the span of each piece of work, -1 for what is in no cell of a forward or backward."""
    cell = np.searchsorted(graph.borders, host, side="right")
    valid = np.where(backward, np.isin(cell, graph.backward), np.isin(cell, graph.forward))
    key = np.where(valid, cell * 2 + backward, -1)
    gemm = np.isin(work.category, [work.categories.index(name) for name in _GEMMS])
    rows = np.flatnonzero(gemm & ~backward & (work.host_call >= 0))
    until = _put_off_until(cell[rows], host[rows], graph, ends)
    return np.where(~backward & (host <= until[cell]), cell * 2 + 1, key)


def _put_off_until(cell: Int, host: Int, graph: Graph, ends: Int) -> Int:
    """When the host launched the last of the weight gradients that it had put off, in each cell of the graph.

    They are GEMMs that make no node, between a backward and a later pass of the same step; in the cell of a
    forward those before its first node. Behind the last pass, as with those of the embedding, they are of
    no micro-batch.

    Args:
        cell: of each GEMM that the host launched.
        host: when.
        graph: of the trace.
        ends: of steps and optimizers, ascending.
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


def _forward_of(number: int, graph: Graph) -> int:
    """Cell of the forward of a span that `_by_graph` numbered."""
    cell, backward = divmod(number, 2)
    if not backward:
        return cell
    return int(graph.forward[np.searchsorted(graph.backward, cell, side="right") - 1])


def _steps(trace: Trace, work: Work) -> tuple[list[StepWindow], Int]:
    """Windows of the steps, and the times at which the host went on to the next one.

    Without step marks a step ends with the optimizer's.
    """
    steps = steps_of(trace)
    if steps.marked or trace.window is not None:
        edges, cuts, labels = steps.edges, steps.marks[1:-1], steps.labels
    else:
        events = trace.arrays
        codes = [code for code, name in enumerate(events.names) if name.startswith(_OPTIMIZER + "step")]
        ends = np.sort(events.end[np.isin(events.name, codes) & events.where("annotation")])
        low, high = int(steps.edges[0]), int(steps.edges[-1])
        ends = ends[(ends > low) & (ends < high)]
        # Several optimizers may share a step: only after more work of micro-batches comes another one.
        busy = np.sort(_host_times(trace, work)[_is_backward(trace, work)])
        later = np.searchsorted(busy, ends)
        inner = ends[later < np.append(later[1:], len(busy))]
        edges, cuts = np.concatenate(([low], inner, [high])), inner
        labels = steps.labels if not len(inner) else [f"update {n}" for n in range(1, len(edges))]
    windows = [StepWindow(label, *span) for label, span in zip(labels, pairwise(edges.tolist()), strict=True)]
    return windows, cuts


def _step_at(times: Int, cuts: Int) -> Int:
    return np.searchsorted(cuts, times, side="right")


def _spans(
    work: Work, host: Int, key: Int, scopes: Scopes, steps: list[StepWindow], cuts: Int
) -> tuple[list[tuple[int, Span]], Bool]:
    """The spans with their numbers, by order of launch, and which work is in one."""
    inside = key >= 0
    rows = np.flatnonzero(inside)
    rows = rows[np.lexsort((host[rows], key[rows]))]
    borders = np.flatnonzero(np.diff(key[rows])) + 1
    spans = []
    for of_span in np.split(rows, borders) if len(rows) else []:
        number, time = int(key[of_span[0]]), int(host[of_span[0]])
        busy = union(work.start[of_span], work.end[of_span])
        if not busy.total:
            inside[of_span] = False
            continue
        backward, virtual, microbatch = number % 2 == 1, -1, -1
        if scopes.usable:
            backward = bool(scopes.backward[number])
            virtual, microbatch = int(scopes.virtual[number]), int(scopes.microbatch[number])
        label = steps[int(_step_at(np.array([time]), cuts)[0])].label
        extent = int(busy.start[0]), int(busy.end[-1])
        phase = BACKWARD if backward else FORWARD
        spans.append((number, Span(label, phase, virtual, microbatch, *extent, busy.total, time)))
    return sorted(spans, key=lambda item: item[1].launched), inside

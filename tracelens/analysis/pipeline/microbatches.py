"""Forward and backward of each micro-batch on one rank of a pipeline: the part that travels."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tracelens.analysis.pipeline.pass_scopes import Scopes, pipeline_scopes
from tracelens.analysis.pipeline.stage_messages import gradient_sync, stage_messages
from tracelens.arrays import Bool, Int, lookup
from tracelens.table import nearest
from tracelens.trace import STEP_MARK, Scope, Trace, Union, Work, gpu_work, steps_of, union

FORWARD, BACKWARD = "forward", "backward"
_BACKWARD_OP = "autograd::engine::evaluate_function"
_OPTIMIZER = "Optimizer."


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
    """

    step: str
    phase: str
    virtual: int
    microbatch: int
    start: int
    end: int
    busy_ns: int


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
        sends: step to number of messages sent to other stages.
        steps: windows of the steps.
    """

    rank: int
    staged: bool
    pipeline_ranks: tuple[int, ...]
    spans: list[Span]
    p2p: Union
    other: Union
    sends: dict[str, int]
    steps: list[StepWindow]


def passes(trace: Trace, *, scope: Scope = "all") -> Passes:
    """The spans of one rank; none where nothing tells that it is part of a pipeline.

    Scopes that name them decide (see _pass_scopes). Without, what the autograd engine launched is
    backward, what made the graph for it is forward, and each message to or from another stage, each step
    mark and each optimizer step ends a span.

    Args:
        trace: of the rank.
        scope: which GPU work counts, see trace.Scope.
    """
    work = gpu_work(trace, scope)
    scopes = pipeline_scopes(trace)
    messages = stage_messages(trace, unnamed=scopes.usable)
    empty = union(np.empty(0, np.int64), np.empty(0, np.int64))
    if not len(work.event) or not (len(messages.time) or scopes.staged):
        return Passes(trace.meta.rank, False, (), [], empty, empty, {}, [])
    is_p2p = np.isin(work.event, messages.kernel)
    host = _host_times(trace, work)
    counted = (work.host_call >= 0) & ~is_p2p & ~gradient_sync(trace, work)
    backward = _is_backward(trace, work)
    if scopes.usable:
        key = _by_scope(host, backward, scopes)
    else:
        key = _by_structure(trace, host, backward, counted, messages.time)
    key = np.where(counted, key, -1)
    steps, cuts = _steps(trace, work)
    spans, in_span = _spans(work, host, key, scopes, steps, cuts)
    outside = work.take(~is_p2p & ~in_span)
    sent = [steps[index].label for index in _step_at(messages.time[messages.sent], cuts).tolist()]
    return Passes(
        trace.meta.rank,
        True,
        messages.group_ranks,
        spans,
        union(work.start[is_p2p], work.end[is_p2p]),
        union(outside.start, outside.end),
        {window.label: sent.count(window.label) for window in steps},
        steps,
    )


def _host_times(trace: Trace, work: Work) -> Int:
    anchor = work.host_call
    return lookup(trace.arrays.start, anchor, -1)


def _is_backward(trace: Trace, work: Work) -> Bool:
    """Whether the autograd engine launched it."""
    anchor = work.host_call
    return lookup(in_autograd(trace), anchor, False)


def in_autograd(trace: Trace) -> Bool:
    """Which events the autograd engine ran."""
    events, ops = trace.arrays, trace.tables["ops"]
    named = [code for code, name in enumerate(events.names) if name.startswith(_BACKWARD_OP)]
    is_node = np.isin(events.name, named) & events.where("op")
    is_node[ops.array("event_id")[ops.array("forward_thread") > 0]] = True
    return nearest(events.parent, events.depth, is_node) >= 0


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


def _by_structure(trace: Trace, host: Int, backward: Bool, counted: Bool, messages: Int) -> Int:
    """Number of the span of each piece of work, -1 for what belongs to none."""
    events = trace.arrays
    marks = [c for c, name in enumerate(events.names) if STEP_MARK.match(name) or name.startswith(_OPTIMIZER)]
    rows = np.flatnonzero(np.isin(events.name, marks) & events.where("annotation"))
    cuts = np.unique(np.concatenate((messages, events.start[rows], events.end[rows])))
    rows = np.flatnonzero(counted)
    rows = rows[np.argsort(host[rows], kind="stable")]
    key = np.full(len(host), -1, dtype=np.int64)
    if not len(rows):
        return key
    cell = np.searchsorted(cuts, host[rows], side="right") * 2 + backward[rows]
    first = np.flatnonzero(np.concatenate(([True], np.diff(cell) != 0)))
    last = np.append(first[1:], len(rows)) - 1
    run = np.repeat(np.arange(len(first)), last - first + 1)
    made = _graph_makers(trace)
    # The op that makes the graph may begin before the first launch, but not before the run before it.
    lowest = int(events.start.min())
    before = np.concatenate(([lowest], host[rows[last[:-1]]]))
    begin = np.maximum(before, np.append(lowest, cuts)[cell[first] // 2])
    makes = np.searchsorted(made, host[rows[last]], "right") > np.searchsorted(made, begin, "left")
    valid = makes | backward[rows[first]] | (len(made) == 0)
    key[rows] = np.where(valid[run], cell, -1)
    return key


def _graph_makers(trace: Trace) -> Int:
    """When the ops of which autograd has run the backward began, ascending.

    Of all ops with the sequence number of a backward, the last one to start made its node: others are around
    it, or ran before it and only saw which number would be next. Recomputed layers count as well, whose
    kernels belong to ops without a backward.
    """
    events, ops = trace.arrays, trace.tables["ops"]
    rows, sequence, thread = (ops.array(name) for name in ("event_id", "sequence", "forward_thread"))
    candidates = (sequence >= 0) & (thread <= 0) & np.isin(sequence, sequence[thread > 0])
    candidates &= ~in_autograd(trace)[rows]
    rows, sequence = rows[candidates], sequence[candidates]
    order = np.lexsort((events.start[rows], sequence))
    last = np.append(np.diff(sequence[order]) != 0, True)[: len(order)]
    return np.sort(events.start[rows[order[last]]])


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
) -> tuple[list[Span], Bool]:
    """The spans by order of launch, and which work is in one."""
    inside = key >= 0
    rows = np.flatnonzero(inside)
    rows = rows[np.lexsort((host[rows], key[rows]))]
    borders = np.flatnonzero(np.diff(key[rows])) + 1
    spans: list[tuple[int, Span]] = []
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
        spans.append((time, Span(label, phase, virtual, microbatch, *extent, busy.total)))
    return [span for _, span in sorted(spans)], inside

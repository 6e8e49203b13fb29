"""Which calls one pass through an MoE layer is made of, and which of the passes stands for the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tracelens.analysis.common import call_time
from tracelens.analysis.moe import PHASES, STAGES, LayerPass, regions
from tracelens.analysis.roofline import OpCalls, direction
from tracelens.arrays import Bool, Int
from tracelens.reproducers.inputs import RECORDED, callable_op, grids
from tracelens.reproducers.select import Call
from tracelens.table import codes, sums
from tracelens.trace import WORK_KINDS, Trace, Work, is_step

_COPIES = ("aten::copy_", "aten::copy", "aten::_to_copy")
"""Ops that copy from device to device as their arguments lie, which is not recorded."""


class PassCall(NamedTuple):
    """A call, or GPU work that is none.

    Attributes:
        call: the op and its recorded arguments; None for communication and what no op stands for.
        name: of the op, the collective, or the work.
        stage: one of STAGES.
        ns: GPU time, the union of what it launched.
        comm: whether it is communication.
        link: whether it copies between GPU and host, as its arguments lay.
    """

    call: Call | None
    name: str
    stage: str
    ns: int
    comm: bool
    link: bool


class PhaseWork(NamedTuple):
    """One micro-batch passing through one MoE layer, in one direction.

    Attributes:
        layer_pass: what is known of it.
        phase: one of PHASES.
        step: name.
        rows: its GPU work, positions in the trace's work.
        event: event row of the op of each of its calls in order of launch, or a number beyond all event rows.
        span_ns: from the start of its first GPU work to the end of the last.
        compute_ns: GPU time but for communication.
    """

    layer_pass: LayerPass
    phase: str
    step: str
    rows: Int
    event: Int
    span_ns: int
    compute_ns: int


def passes(trace: Trace, phase: str, stages: Sequence[str], layer: int, step: str) -> list[PhaseWork]:
    """The passes of one phase in order of launch, without those that the recording or a window cut.

    Args:
        trace: of the rank.
        phase: one of PHASES.
        stages: of STAGES, which work counts.
        layer: number among the rank's MoE layers, -1: all.
        step: "2" for ProfilerStep#2, or the whole name; "": all.
    """
    layers, work = trace.once(regions), trace.work
    selected = np.isin(layers.stage, [STAGES.index(stage) for stage in stages])
    selected &= (layers.layer_pass >= 0) & (layers.phase == PHASES.index(phase))
    key = _keys(trace)
    comm = work.kind == WORK_KINDS.index("comm")
    result = []
    for number in np.unique(layers.layer_pass[selected]).tolist():
        layer_pass = layers.passes[number]
        label = layers.labels[layer_pass.step]
        if layer not in (-1, layer_pass.layer) or (step and label not in (step, f"ProfilerStep#{step}")):
            continue
        rows = np.flatnonzero(selected & (layers.layer_pass == number))
        rows = rows[np.argsort(trace.arrays.start[work.host_call[rows]], kind="stable")]
        _, first = np.unique(key[rows], return_index=True)
        event = key[rows][np.sort(first)]
        span = int(work.end[rows].max() - work.start[rows].min())
        computed = work.take(rows[~comm[rows]])
        _, ns = call_time(computed, key[rows[~comm[rows]]])
        result.append(PhaseWork(layer_pass, phase, label, rows, event, span, int(ns.sum())))
    in_steps = [phase_work for phase_work in result if is_step(phase_work.step)]
    return in_steps or result


def median_pass(candidates: Sequence[PhaseWork]) -> PhaseWork:
    """The one with the median of GPU time, of two the shorter."""
    return sorted(candidates, key=lambda phase_work: phase_work.compute_ns)[(len(candidates) - 1) // 2]


def same_ops(trace: Trace, phase_work: PhaseWork, candidates: Sequence[PhaseWork]) -> tuple[int, int]:
    """How many of the passes call the same ops, and how many of these with the same arguments."""
    ops, count = trace.once(OpCalls), len(trace.arrays.start)

    def signature(candidate: PhaseWork) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
        event = np.where(candidate.event < count, candidate.event, -1)
        name, *recorded = ops.keys(event)
        return tuple(name.tolist()), tuple(tuple(key.tolist()) for key in recorded)

    ops_and_arguments = signature(phase_work)
    same = [other for other in map(signature, candidates) if other[0] == ops_and_arguments[0]]
    return len(same), sum(other == ops_and_arguments for other in same)


def pass_calls(trace: Trace, phase_work: PhaseWork) -> list[PassCall]:
    """The calls of a pass in order of launch."""
    layers, work = trace.once(regions), trace.work.take(phase_work.rows)
    key = _keys(trace)[phase_work.rows]
    ops, table, count = trace.once(OpCalls), trace.tables["ops"], len(trace.arrays.start)
    texts = [table.columns[name] for name in RECORDED]
    group, (events,) = codes(key)
    _, ns = call_time(work, key)
    longest = _longest(work, group)
    comm = work.kind[longest] == WORK_KINDS.index("comm")
    link = _over_link(work, group, len(events))
    recorded = trace.tables["collectives"]
    collectives = dict(zip(recorded.array("kernel_id").tolist(), recorded.texts("collective"), strict=True))
    kernel, blocks = grids(trace, work, np.where(key < count, key, -1))
    result = []
    for index in np.searchsorted(events, phase_work.event).tolist():
        event, piece = int(events[index]), int(longest[index])
        call = None
        if event < count:
            row = int(ops.row[event])
            call = Call(ops.name(event), *(text.values[text.codes[row]] for text in texts))
            if blocks[piece] >= 0:
                call = call._replace(kernel=work.names[kernel[piece]], blocks=int(blocks[piece]))
        op = int(work.op[piece])
        name = ops.name(op) if op >= 0 and not comm[index] else work.names[work.name[piece]]
        name = collectives.get(int(work.event[piece]), name)
        stage = STAGES[int(layers.stage[phase_work.rows[piece]])]
        far = bool(link[index]) and name in _COPIES
        result.append(
            PassCall(call, call.op if call else name, stage, int(ns[index]), bool(comm[index]), far)
        )
    return result


def _keys(trace: Trace) -> Int:
    """What each piece of work belongs to: the op to call, else a number beyond all event rows."""
    call = trace.once(_calls)
    return np.where(call >= 0, call, len(trace.arrays.start) + np.arange(len(call)))


def _calls(trace: Trace) -> Int:
    return callable_op(trace, trace.work)


def _longest(work: Work, group: Int) -> Int:
    """Of each group its longest piece of work."""
    order = np.lexsort((work.dur, group))
    return order[np.flatnonzero(np.diff(group[order], append=-1))]


def _over_link(work: Work, group: Int, groups: int) -> Bool:
    """Which groups are nothing but copies between GPU and host."""
    far = {code: direction(work.names[code]) in ("htod", "dtoh") for code in np.unique(work.name).tolist()}
    copied = np.array([far[code] for code in work.name.tolist()], dtype=bool) & ~work.is_kernel
    only_copies: Bool = sums(group, copied.astype(np.int64), groups) == np.bincount(group)
    return only_copies

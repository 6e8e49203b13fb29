"""A whole MoE layer - router, dispatch, experts, combine - as one script: its ops in order of launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from tracelens.analysis.common import call_time
from tracelens.analysis.moe import PHASES, STAGES, LayerPass, regions
from tracelens.analysis.roofline import OpCalls, direction
from tracelens.arrays import Int, unique
from tracelens.dtypes import torch_dtype
from tracelens.reproducers.arguments import (
    GROUP_SIZES,
    RECORDED,
    Argument,
    TensorArgument,
    Unreplayable,
    complete,
    fill,
    grids,
    read_arguments,
    scaled,
    tensors,
)
from tracelens.reproducers.call_source import PassLine, flows, source
from tracelens.reproducers.calls import Call, callable_op, cases
from tracelens.reproducers.folder import Script
from tracelens.reproducers.scripts import about, in_graph, makers, plain, render
from tracelens.table import Skip, codes, sums
from tracelens.trace import WORK_KINDS, Trace, is_step

_INDENT = 4
COMM = "communication"
LINK = "host-device copy; the script runs on one device"
NO_OP = "no op with recorded arguments"
_COPIES = ("aten::copy_", "aten::copy", "aten::_to_copy")
"""Ops that copy from device to device as their arguments lie, which is not recorded."""


class PassCall(NamedTuple):
    """A call, or GPU work that is none."""

    call: Call | None  # the op and its recorded arguments; None for communication and what no op stands for
    name: str  # of the op, the collective, or the work
    stage: str  # one of STAGES
    ns: int  # GPU time, the union of what it launched
    comm: bool  # whether it is communication
    link: bool  # whether it copies between GPU and host, as its arguments lay


class PhaseWork(NamedTuple):
    """One micro-batch passing through one MoE layer, in one direction."""

    layer_pass: LayerPass  # what is known of it
    phase: str  # one of PHASES
    step: str  # name
    rows: Int  # its GPU work, positions in the trace's work
    # event row of the op of each of its calls in order of launch, or a number beyond all event rows
    event: Int
    span_ns: int  # from the start of its first GPU work to the end of the last
    compute_ns: int  # GPU time but for communication


class TracedCalls(NamedTuple):
    """The calls of a pass; times in us."""

    lines: list[PassLine]  # calls and what is left out, in order of launch
    calls_us: float  # GPU time of the calls
    left_out_us: list[float]  # of each call left out
    comm_us: float  # of communication, which is left out as well

    @property
    def calls(self) -> int:
        return sum(line.arguments is not None for line in self.lines)

    @property
    def tensors(self) -> list[TensorArgument]:
        return tensors([argument for line in self.lines for argument in line.arguments or []])

    @property
    def ops(self) -> set[str]:
        return {line.op for line in self.lines if line.arguments is not None}


def sequences(
    trace: Trace,
    *,
    phases: Sequence[str] = (),
    stages: Sequence[str] = STAGES,
    layer: int = -1,
    step: str = "",
    max_elements: int | None = None,
) -> tuple[list[Script], list[Skip]]:
    """The median pass through an MoE layer as a script: one forward, one backward, one of the recompute.

    Args:
        trace: of one rank.
        phases: of PHASES; by default those that the trace has.
        stages: of STAGES, the parts of the layer.
        layer: number among the rank's MoE layers, -1 for any.
        step: "2" for ProfilerStep#2, or the whole name; "" for any.
        max_elements: scale sizes down until no tensor has more elements.

    Returns:
        scripts, and what could not be made. A Script's `count` is the number of passes with the same ops;
        `total_us` is the time of the script's calls in all of these, if each takes as long as the median.
    """
    layers = trace.once(regions)
    if not layers.passes:
        return [], [Skip("MoE layer", "no MoE layer in the trace: no router followed by experts")]
    shown = {PHASES[code] for code in layers.phase.tolist() if code >= 0}
    scripts, skips = [], []
    for phase in phases or [phase for phase in PHASES if phase in shown]:
        candidates = passes(trace, phase, stages, layer, step)
        if not candidates:
            reason = f"no MoE layer has {phase} work"
            if (layers.phase == PHASES.index(phase)).any():
                layer_count = max(layer_pass.layer for layer_pass in layers.passes) + 1
                filters = [f"in layer {layer}"] * (layer >= 0) + [f"in step {step}"] * bool(step)
                reason = f"no MoE work {' '.join(filters)}".rstrip()
                reason += f"; the trace has MoE layers 0 to {layer_count - 1} and the steps "
                reason += ", ".join(layers.labels)
            skips.append(Skip(_subject(phase, stages), reason))
            continue
        try:
            scripts.append(_script(trace, candidates, stages, max_elements))
        except Unreplayable as error:
            skips.append(Skip(_subject(phase, stages), str(error)))
    return scripts, skips


def _subject(phase: str, stages: Sequence[str]) -> str:
    part = "" if len(stages) == len(STAGES) else f", {' and '.join(stages)} only"
    return f"MoE layer, {phase}{part}"


def _script(
    trace: Trace, candidates: Sequence[PhaseWork], stages: Sequence[str], max_elements: int | None
) -> Script:
    """The script of the median pass.

    Raises:
        Unreplayable: it has no calls, or would be more than its template and data.
    """
    median, unscaled = median_pass(candidates), max_elements is None
    calls = traced(trace, median, max_elements)
    if not calls.calls:
        raise Unreplayable("none of its calls can be replayed; record with record_shapes=True")
    parts = "layer" if len(stages) == len(STAGES) else "_".join(stages).replace(" ", "_")
    name = f"moe_{parts}_{median.phase}"
    alike, equal = same_ops(trace, median, candidates)
    times_us = sorted(candidate.compute_ns / 1e3 for candidate in candidates)
    devices = ", ".join(sorted(set(trace.meta.devices.values())))
    layer_pass, span_us = median.layer_pass, median.span_ns / 1e3
    event, origin = trace.work.op[median.rows], trace.tables["events"].coded("source")
    # What was traced, and where.
    comments = [
        f"{median.phase.capitalize()} pass of an MoE layer, {calls.calls:,} calls in launch order "
        f"({_sizes(layer_pass)})",
        f"Traced: rank {trace.meta.rank}, {median.step}, micro-batch {layer_pass.micro_batch}, "
        f"layer {layer_pass.layer}",
        f"{calls.calls_us:,.1f} us of GPU time, {span_us:,.1f} us from first start to last end, on "
        f"{devices or 'an unknown device'}",
        *in_graph(sorted({origin.values[code] for code in origin.codes[event[event >= 0]].tolist()})),
        f"Median of {len(candidates)} passes "
        f"({times_us[0]:,.1f} to {times_us[-1]:,.1f} us without communication);",
        f"{alike} of them call the same ops, {equal} with the same arguments.",
    ]
    # What is not as it was in the trace.
    left_out_us = sum(calls.left_out_us)
    words = [f"communication of {calls.comm_us:,.1f} us"] * (calls.comm_us > 0)
    if calls.left_out_us:
        share = left_out_us / max(calls.calls_us + left_out_us, 1e-9)
        words.append(
            f"{len(calls.left_out_us):,} calls of {left_out_us:,.1f} us ({share:.1%} of all calls' time)"
        )
    if words:
        comments.append(f"Left out (below): {'; '.join(words)}")
    if any(tensor.maker == "routed" for tensor in calls.tensors):
        comments.append(f"{GROUP_SIZES[0].upper()}{GROUP_SIZES[1:]}")
    if not unscaled:
        comments.append("Sizes are scaled down; the times above are for the traced sizes")
    libraries = sorted({op.partition("::")[0] for op in calls.ops} - {"aten"})
    traced_us = round(calls.calls_us, 3)
    text = render(
        "sequence.py.j2",
        {
            "library": bool(libraries),
            "leaves_out": calls.calls < len(calls.lines),
            "kinds": makers(calls.tensors),
        },
        about=about(comments),
        name=name,
        traced_us=traced_us if unscaled else None,
        span_us=round(span_us, 3) if unscaled else None,
        traced_on=plain(devices),
        libraries=libraries,
        calls=source(calls.lines, _INDENT),
    )
    return Script(
        name=name,
        kind="sequence",
        subject=_subject(median.phase, stages),
        shapes=_sizes(layer_pass),
        text=text,
        count=alike,
        traced_us=traced_us if unscaled else 0.0,
        total_us=calls.calls_us * alike,
    )


def _sizes(layer_pass: LayerPass) -> str:
    """Sizes of a layer as far as they are known."""
    words = [f"{layer_pass.tokens:,} tokens"] * (layer_pass.tokens > 0)
    words += [f"hidden {layer_pass.hidden:,}"] * (layer_pass.hidden > 0)
    words += [f"{layer_pass.experts} experts"] * (layer_pass.experts > 0) + [f"top {layer_pass.top_k}"] * (
        layer_pass.top_k > 0
    )
    return ", ".join(words) or "sizes not recorded"


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
    key = trace.once(_keys)
    comm = work.kind == WORK_KINDS.index("comm")
    result = []
    for number in unique(layers.layer_pass[selected]).tolist():
        layer_pass = layers.passes[number]
        label = layers.labels[layer_pass.step]
        if layer not in (-1, layer_pass.layer) or (step and label not in (step, f"ProfilerStep#{step}")):
            continue
        rows = np.flatnonzero(selected & (layers.layer_pass == number))
        rows = rows[np.argsort(trace.arrays.start[work.host_call[rows]], kind="stable")]
        _, first = np.unique(key[rows], return_index=True)
        event = key[rows][np.sort(first)]
        computed = rows[~comm[rows]]
        _, ns = call_time(work.take(computed), key[computed])
        result.append(
            PhaseWork(
                layer_pass=layer_pass,
                phase=phase,
                step=label,
                rows=rows,
                event=event,
                span_ns=int(work.end[rows].max() - work.start[rows].min()),
                compute_ns=int(ns.sum()),
            )
        )
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
    key = trace.once(_keys)[phase_work.rows]
    ops, table, count = trace.once(OpCalls), trace.tables["ops"], len(trace.arrays.start)
    texts = [table.columns[name] for name in RECORDED]
    group, (events,) = codes(key)
    _, ns = call_time(work, key)
    order = np.lexsort((work.dur, group))
    longest = order[np.flatnonzero(np.diff(group[order], append=-1))]  # piece of work of each call
    comm = work.kind[longest] == WORK_KINDS.index("comm")
    # Calls that are nothing but copies between GPU and host.
    far = {code: direction(work.names[code]) in ("htod", "dtoh") for code in unique(work.name).tolist()}
    copied = np.array([far[code] for code in work.name.tolist()], dtype=bool) & ~work.is_kernel
    link = sums(group, copied.astype(np.int64), len(events)) == np.bincount(group)
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
        result.append(
            PassCall(
                call=call,
                name=call.op if call else name,
                stage=stage,
                ns=int(ns[index]),
                comm=bool(comm[index]),
                link=bool(link[index]) and name in _COPIES,
            )
        )
    return result


def _keys(trace: Trace) -> Int:
    """What each piece of work belongs to: the op to call, else a number beyond all event rows."""
    call = callable_op(trace, trace.work)
    return np.where(call >= 0, call, len(trace.arrays.start) + np.arange(len(call)))


def traced(trace: Trace, phase_work: PhaseWork, max_elements: int | None) -> TracedCalls:
    """The calls of a pass with their arguments, and what has to be left out."""
    launched = pass_calls(trace, phase_work)
    recorded = _recorded(trace, phase_work, launched)
    if max_elements is not None:
        # All divided by one number, so that results still fit the calls behind them.
        kept = [arguments for arguments in recorded if not isinstance(arguments, str)]
        smaller = iter(scaled("", [argument for arguments in kept for argument in arguments], max_elements))
        recorded = [
            arguments if isinstance(arguments, str) else [next(smaller) for _ in arguments]
            for arguments in recorded
        ]
    lines, calls_us, left_out_us, comm_us = [], 0.0, [], 0.0
    for pass_call, arguments in zip(launched, recorded, strict=True):
        name, us = pass_call.name, pass_call.ns / 1e3
        if isinstance(arguments, str):
            reason = arguments
        else:
            try:
                lines.append(PassLine(pass_call.stage, name, us, fill(name, arguments)))
                calls_us += us
                continue
            except Unreplayable as error:
                reason = str(error)
        lines.append(PassLine(pass_call.stage, f"{name}: {reason}", us, None))
        if pass_call.comm:
            comm_us += us
        else:
            left_out_us.append(us)
    return TracedCalls(lines, calls_us, left_out_us, comm_us)


def _recorded(
    trace: Trace, phase_work: PhaseWork, launched: Sequence[PassCall]
) -> list[list[Argument] | str]:
    """The recorded arguments of each call, with index tensors, or why it is left out.

    The element type of tensors in lists is not recorded. Where the kernel tells it to the cost model it is
    that; a kernel that merely moves data does not tell: then it is the type of the last tensor of that shape,
    or the last one at all.
    """
    by_cost = {
        case.call: dtype
        for case in cases(trace, trace.work.take(phase_work.rows))
        if case.cost and (dtype := torch_dtype(case.cost.dtype))
    }
    last, of_shape = "float32", dict[tuple[int, ...], str]()

    def typed(argument: Argument, dtype: str) -> Argument:
        if not isinstance(argument, list):
            return argument
        return [
            replace(tensor, dtype=dtype or of_shape.get(tensor.shape, last))
            if isinstance(tensor, TensorArgument)
            else tensor
            for tensor in argument
        ]

    recorded: list[list[Argument] | str] = []
    for pass_call in launched:
        call = pass_call.call
        if pass_call.comm or call is None or pass_call.link:
            recorded.append(COMM if pass_call.comm else NO_OP if call is None else LINK)
            continue
        try:
            arguments = read_arguments(*call.recorded, of_lists="float32")
        except Unreplayable as error:
            recorded.append(str(error))
            continue
        with_types = [typed(argument, by_cost.get(call, "")) for argument in arguments]
        recorded.append(complete(pass_call.name, with_types, call.kernel, call.blocks))
        for argument in arguments:
            if isinstance(argument, TensorArgument) and flows(argument):
                last = of_shape[argument.shape] = argument.dtype
    return recorded

"""Which calls of a trace can be made again, and are to be; why for other GPU work no script can stand.

GPU work belongs to the innermost op around its launch. Where that is no registered op - an autograd Function,
a compiled region -, a registered op around it stands for it, if nothing else in there can be called itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tracelens.analysis import ANALYZERS
from tracelens.analysis.common import call_time, own_device
from tracelens.analysis.roofline import OpCalls, with_surroundings
from tracelens.arrays import Bool, Int, lookup, unique
from tracelens.costs import OpCost
from tracelens.devices import Device
from tracelens.errors import TracelensError
from tracelens.findings import DETECTORS, JOB, Detection, RankContext
from tracelens.read import NotedCall
from tracelens.reproducers.arguments import (
    LONG_LIST,
    NO_SHAPES,
    OP,
    RECORDED,
    NotedCalls,
    Unreplayable,
    complete,
    fill,
    grids,
    read_arguments,
    tensors,
)
from tracelens.table import Skip, codes, nearest, sums
from tracelens.trace import WORK_KINDS, Run, Trace, Union, Work, describe, exclusive, matching, wildcards

OP_SCRIPT, COLLECTIVE = "scripts of ops", "scripts of collectives"
"""What stands for GPU work that is not opaque."""
_COMM = re.compile(r"c10d::|record_param_comms")
_GRAPH = re.compile("GraphLaunch")
_REGISTERED = re.compile(rf"\A{OP.pattern}\Z", OP.flags)
# Kinds of generated kernels: pointwise, reductions, scans, sorts, templates, and several in one.
_INDUCTOR = re.compile(r"triton_(?:poi|red|per|spl|tem|for|helper|unk|mm|bmm|convolution|flex|mix)\w*")
BEFORE = "launched before the recording"
BY_GRAPH = "launched by a graph"
NO_SIZES = "communication without recorded sizes"
NO_OP = "launched outside any recorded op"
INDUCTOR = "torch.compile Triton kernels"
GENERATED = "generated Triton kernels"
NO_ARGUMENTS = "ops without recorded arguments"
UNREGISTERED = "launched by an unregistered op"
_HOW = {
    BEFORE: "its launch call is not in the trace; use torch.profiler.schedule with a warmup step, or call "
    "torch.cuda.synchronize() before recording",
    BY_GRAPH: "a CUDA or HIP graph launches all its kernels in one call without ops; record the step "
    "without graphs (no mode='reduce-overhead', enforce_eager or the like)",
    NO_SIZES: "recent torch with NCCL or RCCL records sizes with record_shapes=True",
    NO_OP: "kernels launched directly from Python or C++ have no recorded arguments; record "
    "ProfilerActivity.CPU and wrap them in an op: torch.library.triton_op for Triton, else "
    "torch.library.custom_op",
    INDUCTOR: "the trace has no source of the generated file; `tracelens.record` notes it beside it, or "
    "record the step with TORCH_COMPILE_DISABLE=1 to replay its ops",
    GENERATED: "their source lies beside the trace; it is code that tracelens did not write or check: "
    "--trust-generated replays it",
    NO_ARGUMENTS: NO_SHAPES,
    UNREGISTERED: "autograd Functions and compiled regions have no callable name; wrap the launching "
    "code in torch.library.custom_op (torch.library.triton_op for Triton)",
    LONG_LIST: "a profiler limit; `tracelens.record` notes them beside the trace; or pass fewer tensors per "
    "call: an optimizer with smaller parameter groups or foreach=False and fused=False",
}


class Account(NamedTuple):
    """What stands for each piece of GPU work."""

    ns: Int  # time of each piece; of pieces of one call that overlap, each nanosecond is one's
    kind: Int  # code into `kinds`, aligned with the work
    kinds: list[str]  # OP_SCRIPT, COLLECTIVE, and why there is no script
    name: Int  # what launched each piece: code into `names`, -1 for nothing that has a name
    names: list[str]  # of ops

    def total(self, kind: str) -> int:
        if kind not in self.kinds:
            return 0
        return int(self.ns[self.kind == self.kinds.index(kind)].sum())


class Call(NamedTuple):
    """What tells calls apart: the op and its recorded arguments, as the JSON texts of the ops table."""

    op: str  # its name
    shapes: str  # of its arguments, as the following
    dtypes: str
    strides: str
    values: str
    kernel: str = ""  # where it has to stand for arguments: see arguments.grids
    blocks: int = -1  # of that kernel

    @property
    def recorded(self) -> tuple[str, str, str, str]:
        """The texts of the ops table, in the order of RECORDED."""
        return self.shapes, self.dtypes, self.strides, self.values


class OpCase(NamedTuple):
    """All calls of one op with the same arguments."""

    call: Call  # the op and its arguments
    times: Int  # GPU time of each call, ns: the union of what it launched
    ranks: tuple[int, ...]  # on which they are
    kernels: tuple[str, ...]  # names of what one call launches, the longest first
    devices: tuple[str, ...]  # GPU names
    cost: OpCost | None  # what a call must do at least, None where that cannot be counted
    at_ns: int  # where the longest call is, since the first event of its trace
    # where the op and its arguments are recorded, see trace.tables.EVENT_SOURCES
    sources: tuple[str, ...] = ("trace",)
    noted: NotedCall | None = None  # what the recorder noted of such a call
    ages: tuple[int | None, ...] = ()  # of its arguments, see caches.argument_ages

    @property
    def total_ns(self) -> int:
        return int(self.times.sum())


@dataclass(frozen=True)
class ReplaySelection:
    """Which calls to replay; all conditions must hold."""

    op: str = ""  # pattern of op names (aten::*mm*), "" for all
    ops: Sequence[str] = ()  # names of ops, empty for all
    # sizes of which each has to be that of a tensor among the arguments
    shapes: Sequence[tuple[int, ...]] = ()
    # pattern of a name around the call, or around the forward call whose gradient it computes: a
    # record_function scope or a Python frame
    module: str = ""
    rank: int = -1  # -1 for all
    # of one event, since the first of its trace: what starts or runs there, with all that it calls
    at_ns: int | None = None
    # by rank, when the GPU work has to run
    during: Mapping[int, Union] | None = field(default=None, hash=False)

    @property
    def selects_all(self) -> bool:
        return not (self.op or self.ops_only or self.during is not None)

    @property
    def ops_only(self) -> bool:
        """Whether a condition applies to calls of ops only, not to collectives."""
        has_rank = self.rank >= 0 or self.at_ns is not None
        return bool(has_rank or self.ops or self.shapes or self.module)


def callable_op(trace: Trace, work: Work) -> Int:
    """The op to call again for each piece of GPU work: the innermost one, else a registered one around it.

    Returns:
        event row of an op with a registered-looking name (namespace::name) and recorded arguments, -1 for
        none; communication and what a graph launches have none.
    """
    events, ops = trace.arrays, trace.once(OpCalls)
    usable = trace.once(_usable)
    innermost = np.where(lookup(usable, work.op, False), work.op, -1)
    launched = trace.tables["links"].array("op_id")
    launched = launched[launched >= 0]
    # Around an op that is called itself no other is called for what it has beside that one.
    taken = with_surroundings(events, events.parent[launched[usable[launched]]])
    around = nearest(events.parent, events.depth, usable)
    outer = lookup(around, work.op, -1)
    outer = np.where((outer >= 0) & ~taken[outer], outer, -1)
    op = np.where(innermost >= 0, innermost, outer)
    hidden = (work.kind == WORK_KINDS.index("comm")) | _by_graph(trace, work)
    return np.where(hidden | (ops.row[op] < 0), -1, op)


def generated_kernels(trace: Trace, work: Work, noted: NotedCalls | None) -> Int:
    """Code, into the names of events, of the noted kernel that a piece of GPU work launches; -1 for none."""
    generated = noted.generated if noted else {}
    known = np.array([name in generated for name in trace.arrays.names], dtype=bool)
    name = lookup(trace.arrays.name, work.op, -1)
    return np.where(lookup(known, name, False), name, -1)


def account(
    trace: Trace, work: Work, noted: NotedCalls | None = None, trust_generated: bool = False
) -> Account:
    """What stands for each piece of this GPU work; all times add up to the time of the work's calls."""
    events = trace.arrays
    call = callable_op(trace, work)
    unique = np.where(call >= 0, call, len(events.start) + np.arange(len(call)))
    group, _ = codes(unique)
    ns = work.end - exclusive(work.start, work.end, group)

    # Of work with an op to call: a script, or what its arguments lack.
    ops, table = trace.once(OpCalls), trace.tables["ops"]
    rows = np.flatnonzero(call >= 0)
    texts = [table.columns[name] for name in RECORDED]
    recorded_codes = [text.codes[ops.row[call[rows]]].astype(np.int64) for text in texts]
    grid = [values[rows] for values in grids(trace, work, call)]
    same_call, keys = codes(events.name[call[rows]], *grid, *recorded_codes)
    code_of = {kind: code for code, kind in enumerate((OP_SCRIPT, COLLECTIVE, *_HOW))}
    kind_of_call = np.zeros(len(keys[0]), dtype=np.int64)
    for index, (op_code, kernel, blocks, *recorded) in enumerate(
        zip(*(key.tolist() for key in keys), strict=True)
    ):
        shapes, dtypes, strides, values = (
            text.values[code] for text, code in zip(texts, recorded, strict=True)
        )
        op = events.names[op_code]
        known = noted.of(op, shapes, dtypes) if noted else None
        try:
            arguments = read_arguments(shapes, dtypes, strides, values, of_lists="float32", noted=known)
            fill(op, complete(op, arguments, events.names[kernel], blocks))
        except Unreplayable as error:
            kind_of_call[index] = code_of.setdefault(str(error), len(code_of))
    kind = np.zeros(len(call), dtype=np.int64)
    kind[rows] = kind_of_call[same_call]

    # Of work without an op to call the first reason that is true of it.
    op_name = lookup(events.name, work.op, -1)
    registered, generated = matching(events.names, _REGISTERED), matching(events.names, _INDUCTOR)
    reasons_without_op = (
        (np.isin(work.event, trace.tables["collectives"].array("kernel_id")), COLLECTIVE),
        (generated_kernels(trace, work, noted) >= 0, OP_SCRIPT if trust_generated else GENERATED),
        (work.unlinked, BEFORE),
        (_by_graph(trace, work), BY_GRAPH),
        (work.kind == WORK_KINDS.index("comm"), NO_SIZES),
        (lookup(generated, op_name, False) | generated[work.name], INDUCTOR),
        (lookup(registered, op_name, False), NO_ARGUMENTS),
        (op_name >= 0, UNREGISTERED),
        (np.ones(len(op_name), dtype=bool), NO_OP),
    )
    unaccounted = call < 0
    for mask, reason in reasons_without_op:
        kind[unaccounted & mask] = code_of[reason]
        unaccounted &= ~mask
    name = lookup(events.name, np.where(call >= 0, call, work.op), -1)
    return Account(ns, kind, list(code_of), name, events.names)


def kernel_factors(run: Run, ratios: Mapping[tuple[str, str], float]) -> dict[str, float]:
    """By which factor the time of kernels changes, by name, where calls take other times.

    `ratios` are those of new time to old one, by op and shapes (`describe`).
    """
    old: dict[str, float] = {}
    new: dict[str, float] = {}
    for trace in run.traces:
        work, ops, table = trace.work, trace.once(OpCalls), trace.tables["ops"]
        call = callable_op(trace, work)
        shapes, dtypes = (table.columns[name] for name in ("shapes", "dtypes"))
        row = ops.row[call]
        name_code = np.where(call >= 0, trace.arrays.name[call], -1)
        same_call, keys = codes(name_code, *(text.codes[row].astype(np.int64) for text in (shapes, dtypes)))
        ratio = np.ones(len(keys[0]))
        for index, (op, shape, dtype) in enumerate(zip(*(key.tolist() for key in keys), strict=True)):
            described = describe(shapes.values[shape], dtypes.values[dtype])
            ratio[index] = ratios.get((trace.arrays.names[op], described), 1.0) if op >= 0 else 1.0
        for code in unique(work.name).tolist():
            of_name, name = work.name == code, work.names[code]
            old[name] = old.get(name, 0.0) + float(work.dur[of_name].sum())
            new[name] = new.get(name, 0.0) + float((work.dur * ratio[same_call])[of_name].sum())
    return {name: new[name] / old[name] for name in old if old[name] and new[name] != old[name]}


def unreplayed(
    trace: Trace, work: Work, noted: NotedCalls | None = None, trust_generated: bool = False
) -> list[Skip]:
    """GPU work that neither scripts of ops nor of collectives stand for, one Skip a reason, largest first."""
    accounted = account(trace, work, noted, trust_generated)
    total_ns = max(int(accounted.ns.sum()), 1)
    times = sums(accounted.kind, accounted.ns, len(accounted.kinds))
    skips = []
    for kind in np.argsort(-times, kind="stable").tolist():
        reason = accounted.kinds[kind]
        if reason in (OP_SCRIPT, COLLECTIVE) or not times[kind]:
            continue
        share = f"{times[kind] / total_ns:.1%}" if times[kind] >= total_ns / 1000 else "under 0.1%"
        subject = f"{share} of GPU time ({times[kind] / 1e3:,.1f} µs)"
        explained = reason in _HOW
        subject += f": {reason}" if explained else ": incomplete arguments"
        how = _HOW[reason] if explained else reason
        # Names of the ops with most time of it.
        of_kind = (accounted.kind == kind) & (accounted.name >= 0)
        name, (op_names,) = codes(accounted.name[of_kind])
        order = np.argsort(-sums(name, accounted.ns[of_kind], len(op_names)), kind="stable")
        words = [accounted.names[op_names[index]] for index in order[:3].tolist()]
        more = f" and {len(op_names) - 3} more" if len(op_names) > 3 else ""
        skips.append(Skip(subject, f"{how} ({', '.join(words)}{more})" if words else how))
    return skips


def _usable(trace: Trace) -> Bool:
    """Mask of event rows that are ops with a registered-looking name and recorded arguments."""
    ops, events = trace.once(OpCalls), trace.arrays
    named = matching(events.names, _REGISTERED) & ~matching(events.names, _COMM)
    rows = np.flatnonzero(np.isin(events.name, np.flatnonzero(named)) & (ops.row >= 0))
    usable = np.zeros(len(events.start), dtype=bool)
    usable[rows] = [ops.recorded(row) for row in rows.tolist()]
    return usable


def _by_graph(trace: Trace, work: Work) -> Bool:
    """Mask of what graphs launched and no capture explains."""
    graph = matching(trace.arrays.names, _GRAPH)
    mask: Bool = (work.node < 0) & (work.launch >= 0) & graph[trace.arrays.name[work.launch]]
    return mask


# ====================
# The calls of a trace that differ: same op, same arguments, with all their times.


def cases(trace: Trace, work: Work) -> list[OpCase]:
    """The different calls behind this GPU work, those with most time first; see `callable_op`."""
    ops = trace.once(OpCalls)
    op_of = callable_op(trace, work)
    callable_work, op_of = work.take(op_of >= 0), op_of[op_of >= 0]
    if not len(callable_work.event):
        return []
    calls, dur = call_time(callable_work, op_of)
    table = trace.tables["ops"]
    texts = {name: table.columns[name] for name in RECORDED}
    row = ops.row[calls]
    kernel, blocks = np.full((2, len(calls)), -1, dtype=np.int64)
    for of_call, of_work in zip((kernel, blocks), grids(trace, callable_work, op_of), strict=True):
        np.maximum.at(of_call, np.searchsorted(calls, op_of), of_work)
    recorded = (texts[name].codes[row] for name in RECORDED)
    group, _ = codes(trace.arrays.name[calls], *recorded, kernel, blocks)
    order = np.lexsort((dur, group))
    last = np.flatnonzero(np.diff(group[order], append=-1))
    first = np.concatenate(([0], last[:-1] + 1))
    by_op = np.argsort(op_of, kind="stable")
    begin = np.searchsorted(op_of[by_op], calls)
    end = np.searchsorted(op_of[by_op], calls, side="right")
    devices = tuple(sorted(set(trace.meta.devices.values())))
    origin, source = int(trace.arrays.start.min()), trace.tables["events"].coded("source")
    distinct = []
    for low, high in zip(first.tolist(), (last + 1).tolist(), strict=True):
        case_calls = order[low:high]
        longest = int(case_calls[-1])
        op, pieces = int(calls[longest]), by_op[begin[longest] : end[longest]]
        pieces = pieces[np.argsort(-callable_work.dur[pieces], kind="stable")]
        kernels = [callable_work.names[code] for code in callable_work.name[pieces].tolist()]
        op_row, piece = int(row[longest]), int(pieces[0])
        launch = int(callable_work.blocks[piece]), int(callable_work.forward[piece])
        call = Call(ops.name(op), *(texts[name].values[texts[name].codes[op_row]] for name in RECORDED))
        if blocks[longest] >= 0:
            kernel_name = trace.arrays.names[kernel[longest]]
            call = call._replace(kernel=kernel_name, blocks=int(blocks[longest]))
        distinct.append(
            OpCase(
                call=call,
                times=dur[case_calls],
                ranks=(trace.meta.rank,),
                kernels=tuple(dict.fromkeys(kernels)),
                devices=devices,
                cost=ops.cost(op, kernels[0], *launch),
                at_ns=int(trace.arrays.start[op]) - origin,
                sources=tuple(
                    sorted({source.values[code] for code in source.codes[calls[case_calls]].tolist()})
                ),
            )
        )
    return sorted(distinct, key=lambda case: -case.total_ns)


def merged(ranks: list[list[OpCase]]) -> list[OpCase]:
    """The cases of several ranks as one list, those with most time first."""
    by_call: dict[Call, OpCase] = {}
    for case in (case for rank in ranks for case in rank):
        previous = by_call.get(case.call)
        if previous is None:
            by_call[case.call] = case
            continue
        longer = max(case, previous, key=lambda candidate: int(candidate.times.max()))
        by_call[case.call] = longer._replace(
            times=np.concatenate((previous.times, case.times)), ranks=(*previous.ranks, *case.ranks)
        )
    return sorted(by_call.values(), key=lambda case: -case.total_ns)


# ====================
# Which calls of a trace to replay.


def sizes(text: str) -> tuple[int, ...]:
    """The sizes that a user writes as 4096,2048 or 4096x2048; raises TracelensError for anything else."""
    words = re.split(r"[,x]", text.strip("[]() "))
    if not all(word.strip().isdecimal() for word in words):
        raise TracelensError(f"{text!r} is not a shape; write sizes such as 4096,2048")
    return tuple(int(word) for word in words)


def selected_work(trace: Trace, selection: ReplaySelection) -> Work:
    """The GPU work of the selected calls; `fits` checks the shapes."""
    events, work = trace.arrays, trace.work
    if selection.rank >= 0 and trace.meta.rank != selection.rank:
        return work.take(np.zeros(len(work.event), dtype=bool))
    keep = work.op >= 0
    op_name = events.name[np.maximum(work.op, 0)]
    if selection.op:
        keep &= matching(events.names, wildcards(selection.op))[op_name]
    if selection.ops:
        named = np.array([name in selection.ops for name in events.names], dtype=bool)
        keep &= named[op_name]
    if selection.module:
        named = matching(events.names, wildcards(selection.module))[events.name]
        keep &= _inside(trace, work, named & events.where("annotation", "python", "slice"))
    if selection.at_ns is not None:
        time = int(events.start.min()) + selection.at_ns
        starts = (events.start == time) & events.where("op", "annotation", "python", "launch", "slice")
        keep &= _inside(trace, work, starts) | ((work.start <= time) & (time < work.end))
    if selection.during is not None:
        when = selection.during.get(trace.meta.rank)
        if when is None or not len(when.start):
            keep[:] = False
        else:
            keep &= when.covered(work.start, work.end) > 0
    return work.take(keep)


def fits(case: OpCase, selection: ReplaySelection) -> bool:
    """Whether the arguments of a case have the selected shapes."""
    if not selection.shapes:
        return True
    try:
        arguments = read_arguments(*case.call.recorded, of_lists="float32", noted=case.noted)
    except Unreplayable:
        return False
    return set(selection.shapes) <= {tensor.shape for tensor in tensors(arguments)}


def _inside(trace: Trace, work: Work, around: Bool) -> Bool:
    """Work whose op, or the forward op that it belongs to, is inside one of these events."""
    inside = nearest(trace.arrays.parent, trace.arrays.depth, around) >= 0
    of_op = lookup(inside, work.op, False)
    of_forward = lookup(inside, work.forward, False)
    return of_op | of_forward


def time_of(
    run: Run, name: str, device: Device | None = None, results: Mapping[str, Any] | None = None
) -> dict[int, Union]:
    """When time is lost to what a detector finds, by rank.

    What it needs and is not among `results` of analyzers, by name, is made.

    Raises:
        TracelensError: no such detector, or it finds nothing; the message says why.
    """
    detector = DETECTORS.get(name)
    outcome: Mapping[int, Detection] | str
    if detector.needs:
        known = results or {}
        outcome = detector.of_run(
            {need: known[need] if need in known else ANALYZERS.get(need)(run) for need in detector.needs}
        )
    else:
        per_rank = {
            trace.meta.rank: detector.of_rank(RankContext(trace, device or own_device(trace)))
            for trace in run.traces
        }
        detections = {
            rank: detection for rank, detection in per_rank.items() if isinstance(detection, Detection)
        }
        outcome = detections or "; ".join(dict.fromkeys(str(reason) for reason in per_rank.values()))
    if isinstance(outcome, str):
        raise TracelensError(f"no finding {name!r} in this trace: {outcome}")
    if JOB in outcome:
        return dict.fromkeys(run.ranks, outcome[JOB].where)
    return {rank: detection.where for rank, detection in outcome.items()}

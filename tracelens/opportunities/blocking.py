"""Calls by which the host waits for the GPU: in MoE layers, elsewhere, and DeepEP's wait without a call."""

from __future__ import annotations

import re
from collections import Counter
from glob import escape

import numpy as np
from msgspec import Struct

from tracelens.analysis.host import DEVICE_SYNCHRONIZE, blocking_calls, threads
from tracelens.analysis.moe import DISPATCH, EXPERTS, PERMUTATION, ROUTER, STAGES, Blocking, blocking, regions
from tracelens.arrays import Bool, Int, isin, lookup, ordered, unique
from tracelens.devices import Device
from tracelens.errors import TracelensError
from tracelens.findings import Confidence, Detection, Outcome, Quantity, RankContext, Remedy, detector
from tracelens.table import codes, nearest
from tracelens.trace import (
    STACK_KINDS,
    STEP_MARK,
    Trace,
    Union,
    both,
    cut,
    enclosing_op,
    fitting,
    matching,
    rows_by_code,
    union,
    wildcards,
)
from tracelens.units import duration, milliseconds, plural, times
from tracelens.what_if import NotApplicable, ScenarioContext, scenario
from tracelens.what_if.graph import Edge, Edit, Node, full_queue, marked_calls, unblock

SURE_SHARE = 0.9
"""Share of the lost time that lies inside the blocking calls themselves, above which the saving is sure: the
rest is a queue that refills."""

MANY_CALLS = 10
"""Blocking calls outside MoE layers per step from which they are told even where they cost no time here: a
loss or a norm is read once or twice a step."""

RESTART_NS = 500_000
"""From the end of DeepEP's count to the launch of its dispatch: meanwhile a host that spins reads the last
counter and allocates what the dispatch writes into; a later launch is of a host that has fallen behind."""

_NAMED = 3  # ops that a sentence names
_INSIDE, _BETWEEN = "inside steps", "between steps"
"""Where calls outside of MoE layers wait; chooses among the remedies."""
_MODULE = re.compile(r"^nn\.Module: |^Optimizer\.")
_NEVER = np.array([np.iinfo(np.int64).min, np.iinfo(np.int64).max])
_BLOCKING_MEASURES = {
    "host blocked per step": "host time in these calls",
    "GPU idle during these calls per step": "idle time while the host is in one of them",
    "GPU idle until the host catches up per step": "idle time after these calls, until work is queued again",
}
_ONE_CALL = "one of these calls in a step"
_NOT_COUNTED = "Where all launches are late, the time until the host catches up does not count."

# The function's own name, with or without namespaces, template arguments and parameters. The cached kinds
# (cached_notify_dispatch) know all sizes before.
_NOTIFY = re.compile(r"(?:^|[\s:])notify_dispatch(?:$|[<(])")
_DISPATCH = re.compile(r"(?:^|[\s:])dispatch(?:$|[<(])")

_FREE = {"1": (ROUTER, PERMUTATION), "2": (ROUTER, PERMUTATION, EXPERTS), "3": tuple(range(len(STAGES)))}
"""The parts of a layer that do not wait, by stage; the rest of 2 waits for the sizes of messages only."""


@detector(
    "moe_blocking_calls",
    evidence="moe",
    scenario="sync_free",
    title="Blocking calls in MoE layers",
    fix="MoE layers without blocking calls",
    launching=True,
    measures={
        "calls per layer and micro-batch": "blocking calls in a forward pass through an MoE layer",
        "calls per layer and micro-batch, STAGE": "those in this stage of the layer",
        **_BLOCKING_MEASURES,
    },
    threshold=_ONE_CALL,
    limits=_NOT_COUNTED,
    remedy="Keep sizes on the GPU: message and expert sizes that the host does not read, or buffers of a "
    "fixed capacity.",
    remedies=(
        Remedy(
            "Primus: turbo_sync_free_moe_stage 1 to 3 (fused permutation, use_turbo_deepep, "
            "use_turbo_grouped_gemm or use_turbo_grouped_mlp); stage 3 needs more memory.",
            framework=("primus",),
            vendor=("amd",),
            best=True,
        ),
        Remedy(
            "Megatron-LM: --moe-grouped-gemm and --moe-permute-fusion; with dropping, "
            "--moe-expert-capacity-factor and --moe-pad-expert-input-to-capacity make all sizes constant.",
            framework=("megatron",),
            best=True,
        ),
        Remedy(
            'transformers: experts_implementation="grouped_mm" reads no sizes on the host.',
            framework=("huggingface",),
            best=True,
        ),
        Remedy("The bundled workload: --sync-free 1 to 3.", framework=("workload",)),
    ),
)
def moe_blocking_calls(context: RankContext) -> Outcome:
    """Calls in MoE layers that make the host wait for the GPU: item, nonzero, tolist, copies to the host."""
    layers = context.trace.once(regions)
    if not layers.passes:
        return "no MoE layer"
    calls = context.trace.once(blocking)
    inside = _in_steps(context, calls) & (calls.layer_pass >= 0)
    if not inside.any():
        return "no blocking call in MoE layers"
    edges = np.array(context.window)
    starts = np.full(len(layers.passes), -1, dtype=np.int64)
    rows = np.flatnonzero(layers.layer_pass[context.rows] >= 0)
    starts[layers.layer_pass[context.rows][rows]] = context.work.start[rows]
    passes = sum(
        not layer_pass.is_recompute and bool(edges[0] <= start <= edges[1])
        for layer_pass, start in zip(layers.passes, starts.tolist(), strict=True)
    )
    counted = inside & ~calls.repeats
    each = int(counted.sum()) / max(passes, 1)
    stages = np.bincount(calls.stage[counted], minlength=len(STAGES)) / max(passes, 1)
    meanwhile, refill = _idle(context, calls, inside)
    where = _lost(context, meanwhile, refill)
    blocked = context.per_step(float(calls.blocked_ns[inside].sum()))
    by_stage = ", ".join(
        f"{count:.3g} in {STAGES[stage]}" for stage, count in enumerate(stages.tolist()) if count
    )
    return Detection(
        (
            Quantity("calls per layer and micro-batch", each, "count"),
            *(
                Quantity(f"calls per layer and micro-batch, {name}", float(stages[stage]), "count")
                for stage, name in enumerate(STAGES)
                if stage in (ROUTER, DISPATCH, PERMUTATION, EXPERTS)
            ),
            Quantity("host blocked per step", blocked, "ns"),
            Quantity("GPU idle during these calls per step", context.per_step(meanwhile.total), "ns"),
            Quantity("GPU idle until the host catches up per step", context.per_step(refill.total), "ns"),
        ),
        context.per_step(where.total),
        where,
        f"{plural(each, 'host sync')} per layer per micro-batch ({by_stage}; most in "
        f"{_ops(context, calls, counted)}) block the host for {milliseconds(blocked)}/step; "
        f"{_consequence(context, meanwhile, refill)}",
        "high" if meanwhile.total > SURE_SHARE * where.total else "medium",
        fact=f"the host waits for the GPU {times(each)} in each MoE layer and micro-batch",
    )


class LayerWaits(Struct, frozen=True):
    """Calls in MoE layers that wait for the GPU."""

    event: Int  # row of each call
    stage: Int  # code into STAGES


def layer_waits(trace: Trace, device: Device | None) -> LayerWaits:
    """The calls of a rank that wait for the GPU in MoE layers."""
    calls = trace.once(blocking)
    inside = calls.layer_pass >= 0
    return LayerWaits(calls.event[inside], calls.stage[inside])


@scenario("sync_free", argument="=1, 2 or 3", usual=("", "1", "2"), reads=(layer_waits,))
def sync_free(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """MoE layers do not wait for the GPU: 1 in router and permutation, 2 in experts too, 3 anywhere.

    Assumes:
        GPU work and launches stay the same, though sync-free layers pad buffers to the worst case and launch
        more.
    """
    stages = _FREE.get(argument or "3")
    if stages is None:
        raise TracelensError(f"scenario sync_free={argument}: the stages are 1, 2 and 3")
    graph, everywhere = context.gpu_graph(), stages == _FREE["3"]
    by_rank = context.read(layer_waits)
    freed = [waits.event[everywhere | np.isin(waits.stage, stages)] for waits in by_rank]
    count = unblock(graph, edit, marked_calls(graph, freed, Node.WAITED))
    if not count:
        where = "an MoE layer" if everywhere else " or ".join(STAGES[stage] for stage in stages)
        raise NotApplicable(f"no call in {where} waits for the GPU")
    return (
        f"{count:,} calls in MoE layers return at once; GPU work and launches stay the same, though "
        "sync-free layers pad buffers to the worst case and launch more"
    )


@detector(
    "other_blocking_calls",
    evidence="idle",
    scenario="no_blocking",
    title="Blocking calls outside MoE layers",
    fix="removing the blocking calls",
    launching=True,
    measures={"calls per step": "blocking calls outside MoE layers", **_BLOCKING_MEASURES},
    threshold=_ONE_CALL,
    limits=f"{_NOT_COUNTED} A device-wide synchronize between steps is told only where no other call waits.",
    remedies=(
        Remedy(
            "Move .item(), .cpu(), print and synchronize out of the step: log every N steps, keep losses and "
            "norms on the GPU, copy with non_blocking=True from pinned memory.",
            cause=(_INSIDE,),
            trains=True,
        ),
        Remedy(
            "Move .item(), .cpu(), print and synchronize out of the step: read results once they are needed, "
            "copy with non_blocking=True to and from pinned memory.",
            cause=(_INSIDE,),
            trains=False,
        ),
        Remedy(
            "{megatron}: --no-check-for-nan-in-loss-and-grad, and a larger --log-interval.",
            framework=("megatron", "primus"),
            cause=(_INSIDE,),
        ),
        Remedy(
            "TrainingArguments: logging_steps, logging_nan_inf_filter=False.",
            framework=("huggingface",),
            trains=True,
            cause=(_INSIDE,),
        ),
        Remedy(
            "If the synchronize only times the steps, leave it out when you time without the profiler; to "
            "keep the host from running ahead, wait for an event of the step before.",
            cause=(_BETWEEN,),
        ),
    ),
)
def other_blocking_calls(context: RankContext) -> Outcome:
    """Calls in steps, outside MoE layers, that make the host wait for the GPU while the GPU runs dry."""
    calls = context.trace.once(blocking)
    inside = _in_steps(context, calls) & (calls.layer_pass < 0)
    if not inside.any():
        return "no blocking call in the steps outside MoE layers"
    # Loops that time their steps wait for each: no call of the program's own, unless there is no other.
    between = between_steps(context.trace)[calls.event] & inside
    only_between = bool((between == inside).all())
    if not only_between:
        inside &= ~between
    meanwhile, refill = _idle(context, calls, inside)
    where = _lost(context, meanwhile, refill)
    # The what-if request in which these calls do not wait, but all others do. Where there are no others, no
    # call waits; else those of the op with most waiting, if no other call is in it.
    scenario = "no_blocking"
    others = calls.event[(calls.layer_pass >= 0) | (between & ~inside)]
    if len(others):
        blocked_ns: Counter[str] = Counter()
        names = _names(context, calls.event[inside])
        for name, ns in zip(names, calls.blocked_ns[inside].tolist(), strict=True):
            blocked_ns[name] += ns
        ((op, _),) = blocked_ns.most_common(1)
        known = call_names(context.trace, context.device)
        paths = unique(known.path[np.searchsorted(known.event, others)]).tolist()
        in_any = any(op in known.paths[path] for path in paths)
        scenario = "" if in_any else f"no_blocking={escape(op)}"
    counted = inside & ~calls.repeats
    count = context.per_step(int(counted.sum()))
    blocked = context.per_step(float(calls.blocked_ns[inside].sum()))
    confidence: Confidence = "high" if meanwhile.total > SURE_SHARE * where.total else "medium"
    beside = ""
    if only_between:
        confidence = "low"
    elif between.any():
        between_ns = context.per_step(float(calls.blocked_ns[between].sum()))
        beside = f"; a synchronize between the steps, {milliseconds(between_ns)}/step, is not counted"
    return Detection(
        (
            Quantity("calls per step", count, "count"),
            Quantity("host blocked per step", blocked, "ns"),
            Quantity("GPU idle during these calls per step", context.per_step(meanwhile.total), "ns"),
            Quantity("GPU idle until the host catches up per step", context.per_step(refill.total), "ns"),
        ),
        context.per_step(where.total),
        where,
        f"{plural(count, 'host sync')} per step (most in {_ops(context, calls, counted)}) block the host for "
        f"{milliseconds(blocked)}/step; {_consequence(context, meanwhile, refill)}{beside}",
        confidence,
        scenario,
        title="A synchronize between the steps" if only_between else "",
        fix="not waiting between the steps" if only_between else "",
        cause=_BETWEEN if only_between else _INSIDE,
        fact=f"the host waits for the GPU {times(count)} per step outside MoE layers"
        if count >= MANY_CALLS
        else "",
    )


def between_steps(trace: Trace) -> Bool:
    """Which events are a device-wide synchronize before the first work of a step, or behind its last.

    Such a call is in no op or module, and its thread has nothing else to do between the border and the call.
    """
    events, thread = trace.arrays, threads(trace)
    marks = np.flatnonzero(events.fitting(STEP_MARK, "annotation"))
    calls = np.flatnonzero(events.fitting(DEVICE_SYNCHRONIZE, "launch"))
    outside = events.where("op") | events.fitting(_MODULE, "python", "annotation")
    calls = calls[nearest(events.parent, events.depth, outside)[calls] < 0]
    result = np.zeros(len(events.start), dtype=bool)
    if not len(marks):
        return result
    active = events.where("op").copy()
    active[trace.work.launch[trace.work.launch >= 0]] = True
    for number, rows in rows_by_code(thread[calls]).items():
        own = calls[rows]
        own_marks = marks[thread[marks] == number]
        borders = np.sort(np.concatenate((events.start[own_marks], events.end[own_marks])))
        starts = np.sort(events.start[active & (thread == number)])
        before, after = (np.searchsorted(starts, events.start[own], side) for side in ("left", "right"))
        # Whether a border lies between the call and the work before it, or the work behind it.
        starts = np.concatenate((_NEVER[:1], starts, _NEVER[1:]))
        earlier, later = starts[before], starts[after + 1]
        result[own] = (
            np.searchsorted(borders, events.start[own], "right") > np.searchsorted(borders, earlier, "right")
        ) | (np.searchsorted(borders, later, "right") > np.searchsorted(borders, events.end[own], "left"))
    return result


class CallNames(Struct, frozen=True):
    """Names of calls that may wait for the GPU, and of the ops around them."""

    event: Int  # row of each call, ascending
    path: Int  # index into `paths` of each
    paths: list[tuple[str, ...]]  # names from the call to the outermost op


def call_names(trace: Trace, device: Device | None) -> CallNames:
    """The names around each call of a rank that may wait."""
    events, around = trace.arrays, trace.once(enclosing_op)
    rows = np.flatnonzero(blocking_calls(trace, trace.work) | trace.once(full_queue))
    columns, op = [events.name[rows]], around[rows]
    while (op >= 0).any():
        columns.append(lookup(events.name, op, -1))
        op = lookup(around, lookup(events.parent, op, -1), -1)
    path, columns = codes(*columns)
    paths = zip(*(column.tolist() for column in columns), strict=True)
    names = [tuple(events.names[code] for code in names_around if code >= 0) for names_around in paths]
    return CallNames(rows, path, names)


@scenario("no_blocking", argument="=CALL_OR_OP", reads=(call_names,))
def no_blocking(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """No host call waits for the GPU, or none whose name or enclosing op matches the argument.

    Assumes:
        The host gets the values that it read at no cost. GPU work and launches stay the same: no padding or
        masks in place of unknown sizes.
    """
    graph, reason = context.gpu_graph(), "no call waits for the GPU"
    calls = np.ones(len(graph), dtype=bool)  # ends of waiting calls that return at once
    if argument:
        reason = f"no blocking call matches {argument!r}, by its name or an enclosing op"
        pattern, chosen = wildcards(argument), []
        for names in context.read(call_names):
            matches = np.array([matching(path, pattern).any() for path in names.paths], dtype=bool)
            chosen.append(names.event[matches[names.path]])
        calls = marked_calls(graph, chosen, Node.WAITED)
    waiting = (graph.edge == Edge.SYNC) & (graph.kind[graph.dst] == Node.WAITED) & calls[graph.dst]
    if not waiting.any():
        raise NotApplicable(reason)
    edit.kept &= ~waiting
    return (
        f"{len(unique(graph.dst[waiting])):,} calls return at once; the host gets the values it read "
        "there at no cost; GPU work and launches stay the same (no padding or masks in place of unknown "
        "sizes)"
    )


def _in_steps(context: RankContext, calls: Blocking) -> Bool:
    """Which calls begin in a step."""
    result: Bool = (calls.start >= context.host_window[0]) & (calls.start <= context.host_window[1])
    return result


def _idle(context: RankContext, calls: Blocking, mask: Bool) -> tuple[Union, Union]:
    """When the GPU is idle because of such calls: while the host sits in them, and until it has caught up.

    Where the GPU waits for launches anyway, the second is no loss of theirs.
    """
    parts, called = [], calls.event[mask]
    for cause in ("blocking call", "queue refill"):
        pieces = context.idle_by(cause)
        within = isin(pieces.host, called)
        parts.append(union(pieces.start[within], pieces.end[within]))
    meanwhile, refill = parts
    return meanwhile, refill


def _lost(context: RankContext, meanwhile: Union, refill: Union) -> Union:
    return meanwhile if context.is_launch_bound else both(meanwhile, refill)


def _consequence(context: RankContext, meanwhile: Union, refill: Union) -> str:
    """What the GPU does meanwhile, and afterwards."""
    during, after = (milliseconds(context.per_step(idle.total)) for idle in (meanwhile, refill))
    text = f"the GPU idles {during}/step during these calls and {after}/step more until the host catches up"
    return f"{text}, not counted because all launches are late" if context.is_launch_bound else text


def _ops(context: RankContext, calls: Blocking, mask: Bool) -> str:
    """The ops, or calls where there is none around them, with the most blocking calls."""
    names = Counter(_names(context, calls.event[mask]))
    return ", ".join(name for name, _ in names.most_common(_NAMED))


def _names(context: RankContext, event: Int) -> list[str]:
    """The innermost op around each of these calls, or the call where there is none."""
    events = context.trace.arrays
    around = context.trace.once(enclosing_op)[event]
    rows = np.where(around >= 0, around, event)
    return [events.names[code] for code in events.name[rows].tolist()]


@detector(
    "deepep_busy_wait",
    evidence="moe",
    title="DeepEP: the host spins until tokens are counted",
    fix="dispatching without a count on the host",
    launching=True,
    measures={
        "spins per step": "dispatches before which the host spins",
        "dispatches per step": "pairs of notify_dispatch and dispatch",
        "host time spun": "from the end of the launch call to the end of notify_dispatch, per step",
        "GPU idle after notify_dispatch": "until dispatch starts, per step",
    },
    threshold=f"dispatch is launched within {RESTART_NS / 1e6:g} ms of the end of notify_dispatch",
    limits="Launches that are late afterwards, because the host has fallen behind, do not count.",
    remedy="Dispatch into fixed-size receive buffers: the host then needs no token counts (DeepEP's "
    "dispatch: num_worst_tokens). Let the experts read their counts on the GPU. This takes more memory.",
    remedies=(
        Remedy(
            "Primus: turbo_sync_free_moe_stage 2 or 3, with use_turbo_deepep and use_turbo_grouped_gemm "
            "(use_turbo_grouped_mlp in earlier releases).",
            framework=("primus",),
        ),
        Remedy("The bundled workload: --sync-free 3.", framework=("workload",)),
    ),
)
def deepep_busy_wait(context: RankContext) -> Outcome:
    """The host spins until DeepEP's `notify_dispatch` ends, and only then launches `dispatch`."""
    work, events, thread = context.work, context.trace.arrays, threads(context.trace)
    is_first, is_second = (
        work.is_kernel & fitting(work.names, work.name, pattern) for pattern in (_NOTIFY, _DISPATCH)
    )
    if not is_first.any():
        return "no DeepEP kernel notify_dispatch"
    # Each notify_dispatch with the dispatch that follows it on the same thread.
    rows = np.flatnonzero((is_first | is_second) & (work.launch >= 0))
    launch = work.launch[rows]
    order = ordered(thread[launch], events.start[launch])
    rows, launch = rows[order], launch[order]
    notifies = is_first[rows]
    follows = notifies[:-1] & ~notifies[1:] & (thread[launch[:-1]] == thread[launch[1:]])
    index = np.flatnonzero(follows)
    if not len(index):
        return "no launch calls of notify_dispatch and the dispatch that follows"
    called, counted = events.end[launch[index]], work.end[rows[index]]
    dispatch_called, dispatched = events.start[launch[index + 1]], work.start[rows[index + 1]]
    # Whether the thread began nothing in between.
    host = np.flatnonzero(events.where(*STACK_KINDS))
    quiet = np.ones(len(index), dtype=bool)
    for number in unique(thread[launch[index]]).tolist():
        starts = np.sort(events.start[host[thread[host] == number]])
        mine = thread[launch[index]] == number
        before, after = np.searchsorted(starts, (called[mine], np.minimum(counted, dispatch_called)[mine]))
        quiet[mine] = before == after
    # The spin ends with the counters, which are written as the first kernel ends.
    spins = quiet & (dispatch_called >= counted) & (counted > called)
    spins &= dispatch_called - counted < RESTART_NS
    count = int(spins.sum())
    if not count:
        return f"the host moves on while notify_dispatch runs, in all {len(spins)} dispatches"
    spun = (counted - called)[spins]
    _, start, end = cut(counted[spins], np.maximum(dispatched, counted)[spins], context.busy.gaps())
    where = union(start, end)
    per_step, spun_ns = context.per_step(count), context.per_step(float(spun.sum()))
    idle_ns = context.per_step(float(where.total))
    return Detection(
        (
            Quantity("spins per step", per_step, "count"),
            Quantity("dispatches per step", context.per_step(len(spins)), "count"),
            Quantity("host time spun", spun_ns, "ns"),
            Quantity("GPU idle after notify_dispatch", idle_ns, "ns"),
        ),
        idle_ns,
        where,
        f"in {count} of {len(spins)} dispatches the host spins until notify_dispatch ends "
        f"({duration(spun_ns)} per step, without a sync call) and only then launches dispatch: the GPU "
        f"idles {duration(idle_ns)} per step, not counting later late launches",
        "high",
    )

"""The host holds the GPU up: silence, launches, blocking calls, garbage collection, small kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from glob import escape

import numpy as np

from tracelens.analysis.host import CODE, GAP_NS, GARBAGE, host_names
from tracelens.analysis.host import launch_bound as share_idle
from tracelens.analysis.moe import DISPATCH, EXPERTS, PERMUTATION, ROUTER, STAGES, Blocking, blocking, regions
from tracelens.arrays import Bool, Int, unique
from tracelens.findings.detectors.detector import Detection, Outcome, Quantity, RankContext, detector
from tracelens.findings.thresholds import (
    LATE_LAUNCH_SHARE,
    MANY_CALLS,
    MANY_SMALL_SHARE,
    MOSTLY_IN_GRAPHS,
    QUEUED_NS,
    SMALL_NS,
    SURE_SHARE,
)
from tracelens.trace import Union, both, enclosing_op, intersection, steps_of, union
from tracelens.trace.graphs import launched_by_graph
from tracelens.units import duration, milliseconds

_NAMED = 3  # as many places or ops a sentence names
_MOST_OF_PLACE = 0.9  # share of a place's time from which on an op alone stands for the place
_IDLE_MEASURES = {
    "GPU idle per step": "idle time with this cause",
    "gaps per step": "gaps with time of this cause",
    "longest": "most time of this cause in one gap",
    "steps affected": "recorded steps with one of these gaps",
}

_ANY_IDLE = "any idle time with this cause, see `idle`"
_BLOCKING_MEASURES = {
    "host blocked per step": "host time in these calls",
    "GPU idle during these calls per step": "idle time while the host is in one of them",
    "GPU idle until the host catches up per step": "idle time after these calls, until work is queued again",
}
_ONE_CALL = "one of these calls in a step"
_NOT_COUNTED = "Where all launches are late, the time until the host catches up does not count."

_EVENT = "Python GC"
"""What torch calls a collection; the other names that GARBAGE knows are calls of the program itself."""


@detector(
    "silent_host",
    evidence="idle",
    scenario="no_idle=silent_host",
    title="Silent host: the GPU waits while no CPU work is recorded",
    fix="closing the gaps of the silent host",
    measures=_IDLE_MEASURES,
    threshold=_ANY_IDLE,
    limits="Without Python frames the trace does not show what the program does at that time.",
)
def silent_host(context: RankContext) -> Outcome:
    """The launching thread is in no recorded op, call or frame for over 0.5 ms while the GPU is idle."""
    title = "Silent host: no work runs, and no CPU work is recorded"
    return _of_cause(context, "silent host", "the host is in no recorded op, call or frame", title)


@detector(
    "python_code",
    evidence="idle",
    scenario="no_idle=python_code",
    title="Python code keeps the GPU waiting",
    fix="moving Python code out of the step",
    measures=_IDLE_MEASURES,
    threshold=_ANY_IDLE,
    limits="The frames are those that the profiler recorded; C extensions are seen as their caller.",
)
def python_code(context: RankContext) -> Outcome:
    """The launching thread is in Python frames and in no op for over 0.5 ms while the GPU is idle."""
    title = "Python code between the ops"
    return _of_cause(context, "Python code", "the host is in Python code between ops", title)


@detector(
    "stalled_host",
    evidence="idle",
    scenario="no_idle=stalled_host",
    title="Stalled host: ops of the host stand still while the GPU waits",
    fix="closing the gaps of the stalled host",
    launching=True,
    measures=_IDLE_MEASURES,
    threshold=_ANY_IDLE,
    limits="What the host waits for, or who has its core, is not in the trace.",
)
def stalled_host(context: RankContext) -> Outcome:
    """Ops of the host take over 0.5 ms and 10 times as long as their like, while the GPU is idle."""
    return _of_cause(context, "stalled host", "the host stands still inside an op")


@detector(
    "kernel_loading",
    evidence="idle",
    scenario="no_idle=kernel_loading",
    title="Kernels are loaded or compiled in every step",
    fix="loading kernels before the step",
    launching=True,
    measures=_IDLE_MEASURES,
    threshold=f"{_ANY_IDLE}, in most steps",
    limits="Where the driver does not record it, loading counts as CPU ops.",
)
def kernel_loading(context: RankContext) -> Outcome:
    """Kernels are loaded or compiled in most steps while the GPU is idle."""
    return _of_cause(context, "kernel loading", "kernels are loaded or compiled")


@detector(
    "data_loading",
    evidence="idle",
    scenario="data_loading_overlapped",
    title="The GPU waits for the next batch",
    fix="prefetching the data",
    measures=_IDLE_MEASURES,
    threshold=_ANY_IDLE,
    limits="A loader counts only where the trace shows its calls by name.",
)
def data_loading(context: RankContext) -> Outcome:
    """The GPU is idle while the host fetches a batch."""
    title = "The step waits for the next batch"
    return _of_cause(context, "data loading", "the host fetches the next batch", title)


@detector(
    "cpu_ops",
    evidence="idle",
    scenario="no_idle=cpu_ops",
    title="CPU ops keep the GPU waiting",
    fix="moving CPU ops out of the step",
    launching=True,
    measures=_IDLE_MEASURES,
    threshold=_ANY_IDLE,
    limits="Work that runs once, such as the first call of a kernel, counts where the recording includes it.",
)
def cpu_ops(context: RankContext) -> Outcome:
    """Ops or calls that launch nothing take over 1 ms before the next launch while the GPU is idle."""
    return _of_cause(context, "CPU ops", "the host is busy in ops and calls")


@detector(
    "collective_calls",
    evidence="idle",
    scenario="no_idle=collective_call",
    title="The host waits inside a collective call",
    fix="collective calls that do not wait",
    launching=True,
    measures=_IDLE_MEASURES,
    threshold=_ANY_IDLE,
    limits="Assumes that all of this time can go; what the host waits for may have to run.",
)
def collective_calls(context: RankContext) -> Outcome:
    """The GPU is idle while the host spends over 1 ms inside a collective call."""
    return _of_cause(context, "collective call", "the host is inside a collective call")


def _of_cause(context: RankContext, cause: str, what: str, title_on_cpu: str = "") -> Outcome:
    """The idle time of one cause, and where in the program it is.

    Args:
        context: of the rank.
        cause: of its idle time.
        what: the host does then.
        title_on_cpu: of the finding where the host itself does the work.
    """
    if not len(context.work.event):
        return "no GPU work"
    of_cause = context.idle.cause == CODE[cause]
    once = of_cause & context.recurrence.once
    pieces = context.idle.take(of_cause & ~once)
    where, once_ns = union(pieces.start, pieces.end), int(context.idle.dur[once].sum())
    if not where.total and once_ns:
        return f"once in this recording: {what} for {duration(once_ns)}"
    if not where.total:
        return f"no idle time with this cause: {what}"
    alone = context.recurrence.steps < 2
    gap_ns = np.bincount(pieces.gap, weights=pieces.dur)
    gaps = unique(pieces.gap)
    longest = int(gap_ns.max())
    steps = steps_of(context.trace)
    in_steps = len(unique(np.searchsorted(steps.edges, context.gaps.start[gaps], side="right")))
    idle_ns = context.per_step(float(where.total))
    # Where most of the time is spent: ops, frames, annotations; of a silent host what is around it.
    host, op, texts = host_names(context.trace, pieces)
    places: Counter[str] = Counter()
    ops: dict[str, Counter[str]] = {}
    for host_code, op_code, ns in zip(host.tolist(), op.tolist(), pieces.dur.tolist(), strict=True):
        inside, around = texts[host_code], texts[op_code]
        place = inside or f"between {around.replace(' -> ', ' and ')}"
        places[place] += ns
        ops.setdefault(place, Counter())[around] += ns
    names: Counter[str] = Counter()
    for place, total in places.items():
        ((op_name, op_ns),) = ops[place].most_common(1)
        inner = op_name if op_ns >= _MOST_OF_PLACE * total and " -> " not in op_name else ""
        names[inner or place] += total
    mostly = ", ".join(f"{name} {duration(context.per_step(ns))}" for name, ns in names.most_common(_NAMED))
    idles = "no work runs for" if context.work.cpu_only else "the GPU idles"
    return Detection(
        (
            Quantity("GPU idle per step", idle_ns, "ns"),
            Quantity("gaps per step", context.per_step(len(gaps)), "count"),
            Quantity("longest", float(longest), "ns"),
            Quantity("steps affected", float(in_steps), "count"),
        ),
        idle_ns,
        where,
        f"{idles} {milliseconds(idle_ns)}/step while {what} (up to {duration(longest)} in one gap, "
        f"in {in_steps} of {context.steps} recorded steps); mostly {mostly}"
        + (f"; {duration(once_ns)} more happened once" if once_ns else "")
        + ("; with one step recorded, not known to recur" if alone else ""),
        "medium" if alone else "high",
        title=title_on_cpu if context.work.cpu_only else "",
    )


@detector(
    "launch_bound",
    evidence="idle",
    scenario="step_graph",
    title="Launch-bound: the GPU waits for the host to launch",
    fix="launching the step as a graph",
    launching=True,
    symptom=True,
    measures={
        "waiting for a launch, share": "idle time before late launches / recorded time",
        "idle with at most one launch queued, share": "such idle time / recorded time",
        "late launches per step": "gaps that end with a late launch",
        "dispatch floor per gap": "median gap before work that was queued in time; it remains",
        "launch call, p50": "median CPU time of a launch call",
        "launch call, p99": "99th percentile of it",
        "launch to start on an idle GPU, p50": "median, from the launch call to the start",
        "launch to start on an idle GPU, p99": "99th percentile of it",
    },
    threshold=f"over {LATE_LAUNCH_SHARE:.0%} of the time",
    limits="The profiler slows the host down: compare with a step without it.",
)
def launch_bound(context: RankContext) -> Outcome:
    """The GPU is idle for over 1% of the time because the host launches its next kernel late."""
    if not len(context.work.event):
        return "no GPU work"
    launched = context.work.launch >= 0
    if not launched.any():
        return "no GPU work has its launch call in the trace"
    gaps = context.gaps
    # What is launched late starts late: the way from the call to the GPU is part of it.
    late = np.zeros(len(gaps.start), dtype=bool)
    causes = ("launch overhead", "queue refill") if context.is_launch_bound else ("launch overhead",)
    late[context.idle_by(*causes).gap] = True
    late &= gaps.after >= 0
    pieces = context.idle_by(*causes, "dispatch")
    pieces = pieces.take(late[pieces.gap])
    where = union(pieces.start, pieces.end)
    window = max(context.window[1] - context.window[0], 1)
    share = where.total / window
    if share <= LATE_LAUNCH_SHARE:
        return f"the GPU waits for launches {share:.1%} of the time"
    # Dispatch floor: the median gap in front of work that lay ready behind other work of its stream; at least
    # GAP_NS, as on ROCm, where queued kernels are drawn end to end, it would be zero.
    work = context.work
    after, before = np.maximum(gaps.after, 0), np.maximum(gaps.before, 0)
    queued = (gaps.after >= 0) & (gaps.before >= 0) & (work.launch[after] >= 0)
    queued &= (context.called[after] <= gaps.start - QUEUED_NS) & (work.stream[after] == work.stream[before])
    queued_ns = (gaps.end - gaps.start)[queued]
    floor_ns = max(float(np.median(queued_ns)), GAP_NS) if len(queued_ns) else float(GAP_NS)
    number = context.per_step(int(late.sum()))
    dur = np.zeros(len(late), dtype=np.int64)
    np.add.at(dur, pieces.gap, pieces.dur)
    saving = context.per_step(float(np.maximum(dur[late] - floor_ns, 0).sum()))
    # How long launching takes: the calls for kernels, and from a call to the start on an idle GPU.
    events = context.trace.arrays
    call = unique(work.launch[launched & work.is_kernel])
    quantities, launch_times = [], []
    for measure, values in (
        ("launch call", events.end[call] - events.start[call]),
        ("launch to start on an idle GPU", (work.start - context.called)[gaps.after[late]]),
    ):
        if len(values):
            p50, p99 = (float(np.percentile(values, percent)) for percent in (50, 99))
            quantities += [Quantity(f"{measure}, p50", p50, "ns"), Quantity(f"{measure}, p99", p99, "ns")]
            launch_times.append(f"{measure}: p50 {duration(p50)}, p99 {duration(p99)}")
    if any(events.names[code].startswith("hip") for code in unique(events.name[call])):
        launch_times.append("on ROCm")
    with_work = context.work.take(launched)
    idle, span = share_idle(context.work, with_work, context.called[launched])
    kernels = context.work.take(context.work.is_kernel)
    in_graphs = float(launched_by_graph(context.trace, kernels).mean()) if len(kernels.event) else 0.0
    by_graphs = f"; graphs launch {in_graphs:.0%} of the kernels" if in_graphs else ""
    return Detection(
        (
            Quantity("waiting for a launch, share", share, "fraction"),
            Quantity("idle with at most one launch queued, share", idle / span, "fraction"),
            Quantity("late launches per step", number, "count"),
            Quantity("dispatch floor per gap", floor_ns, "ns"),
            *quantities,
        ),
        saving,
        where,
        f"the GPU waits for launches {share:.1%} of the time, in {number:,.0f} gaps per step; "
        f"{', '.join(launch_times)}; dispatch floor: {duration(floor_ns)} per gap{by_graphs}. "
        "The profiler slows the host: compare with an unprofiled step",
        "low",
        in_graphs=in_graphs > MOSTLY_IN_GRAPHS,
        fix="capturing the rest of the step in graphs" if in_graphs > MOSTLY_IN_GRAPHS else "",
    )


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
    each = int(inside.sum()) / max(passes, 1)
    stages = np.bincount(calls.stage[inside], minlength=len(STAGES)) / max(passes, 1)
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
        f"{each:.3g} host syncs per layer per micro-batch ({by_stage}; most in "
        f"{_ops(context, calls, inside)}) block the host for {milliseconds(blocked)}/step; "
        f"{_consequence(context, meanwhile, refill)}",
        "high" if meanwhile.total > SURE_SHARE * where.total else "medium",
        fact=f"the host waits for the GPU {each:.3g} times in each MoE layer and micro-batch",
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
    limits=_NOT_COUNTED,
)
def other_blocking_calls(context: RankContext) -> Outcome:
    """Calls in steps, outside MoE layers, that make the host wait for the GPU while the GPU runs dry."""
    calls = context.trace.once(blocking)
    inside = _in_steps(context, calls) & (calls.layer_pass < 0)
    if not inside.any():
        return "no blocking call in the steps outside MoE layers"
    meanwhile, refill = _idle(context, calls, inside)
    where = _lost(context, meanwhile, refill)
    # The what-if request in which these calls do not wait, but those in MoE layers do. Where none is in an
    # MoE layer, no call waits; else those of the op with most waiting, if calls in MoE layers are not in it.
    scenario = "no_blocking"
    in_layers = calls.event[calls.layer_pass >= 0]
    if len(in_layers):
        blocked_ns: Counter[str] = Counter()
        names = _names(context, calls.event[inside])
        for name, ns in zip(names, calls.blocked_ns[inside].tolist(), strict=True):
            blocked_ns[name] += ns
        ((op, _),) = blocked_ns.most_common(1)
        # Names of the calls in layers and of all ops around them.
        events, around = context.trace.arrays, context.trace.once(enclosing_op)
        rows, above, codes = in_layers, around[in_layers], set[int]()
        while len(rows):
            codes.update(unique(events.name[rows]).tolist())
            rows = unique(above[above >= 0])
            above = around[events.parent[rows][events.parent[rows] >= 0]]
        scenario = "" if op in {events.names[code] for code in codes} else f"no_blocking={escape(op)}"
    count = context.per_step(int(inside.sum()))
    blocked = context.per_step(float(calls.blocked_ns[inside].sum()))
    return Detection(
        (
            Quantity("calls per step", count, "count"),
            Quantity("host blocked per step", blocked, "ns"),
            Quantity("GPU idle during these calls per step", context.per_step(meanwhile.total), "ns"),
            Quantity("GPU idle until the host catches up per step", context.per_step(refill.total), "ns"),
        ),
        context.per_step(where.total),
        where,
        f"{count:,.3g} host syncs per step (most in {_ops(context, calls, inside)}) block the host for "
        f"{milliseconds(blocked)}/step; {_consequence(context, meanwhile, refill)}",
        "high" if meanwhile.total > SURE_SHARE * where.total else "medium",
        scenario,
        fact=f"the host waits for the GPU {count:,.0f} times per step outside MoE layers"
        if count >= MANY_CALLS
        else "",
    )


def _in_steps(context: RankContext, calls: Blocking) -> Bool:
    """Which calls begin in a step."""
    result: Bool = (calls.start >= context.host_window[0]) & (calls.start <= context.host_window[1])
    return result


def _idle(context: RankContext, calls: Blocking, mask: Bool) -> tuple[Union, Union]:
    """When the GPU is idle because of such calls: while the host sits in them, and until it has caught up.

    Where the GPU waits for launches anyway, the second is no loss of theirs.
    """
    within = np.isin(context.idle.host, calls.event[mask])
    parts = []
    for cause in ("blocking call", "queue refill"):
        pieces = context.idle.take(within & (context.idle.cause == CODE[cause]))
        parts.append(union(pieces.start, pieces.end))
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
    "garbage_collection",
    evidence="idle",
    scenario="no_garbage_collection",
    title="Garbage collection stalls the host",
    fix="keeping garbage collection out of the step",
    measures={
        "collecting": "host time in collections, per step",
        "collections per step": "collections that reach into a step",
        "collections called by the program": "share that Python frames show to be called, as by gc.collect()",
        "longest collection": "longest one, whole",
        "GPU idle while collecting": "idle time with this cause, per step",
        "step-time variation": "(longest - shortest step) / mean step, with two steps or more",
    },
    threshold="one collection that reaches into the steps",
    limits="Needs a recording with collections: by `tracelens.record`, or torch's record_python_gc_info.",
)
def garbage_collection(context: RankContext) -> Outcome:
    """Python's garbage collector runs during steps."""
    if not len(context.work.event):
        return "no GPU work"
    collections = _within(context, lambda name: bool(GARBAGE.search(name)))
    count = len(collections.start)
    if not count:
        return (
            "no garbage collection in the steps; to record it, use torch's profiler with with_stack and "
            "record_python_gc_info (experimental_config)"
        )
    during = intersection(collections, Union(*(np.array([edge]) for edge in context.host_window)))
    idle = context.idle_by("garbage collection")
    where = union(idle.start, idle.end)
    calls = _within(context, lambda name: bool(GARBAGE.search(name)) and not name.startswith(_EVENT))
    # Who called is known from Python frames only; tracelens.record marks collections without them.
    framed = bool(context.trace.arrays.where("python").any())
    called = int((calls.covered(collections.start, collections.end) > 0).sum())
    by = f" ({called / count:.0%} called by the program)" if framed else ""
    longest = int((collections.end - collections.start).max())
    each = context.per_step(count)
    often = "once in each" if each == 1 else f"{each:,.2g} times in each"
    if each < 1:
        often = f"in about one of {1 / each:.0f}"
    steps_ns = np.diff(steps_of(context.trace).only_whole().edges)
    quantities = [
        Quantity("collecting", context.per_step(during.total), "ns"),
        Quantity("collections per step", context.per_step(count), "count"),
        *([Quantity("collections called by the program", called / count, "fraction")] if framed else []),
        Quantity("longest collection", longest, "ns"),
        Quantity("GPU idle while collecting", context.per_step(where.total), "ns"),
    ]
    steps = ""
    if len(steps_ns) > 1:
        variation = float((steps_ns.max() - steps_ns.min()) / steps_ns.mean())
        quantities.append(Quantity("step-time variation", variation, "ratio"))
        steps = f"; step times spread by {variation:.1%}"
    return Detection(
        tuple(quantities),
        context.per_step(where.total),
        where,
        f"{context.per_step(count):.1f} collections per step{by} stall the host for "
        f"{duration(context.per_step(during.total))} (longest {duration(longest)}); the GPU idles for "
        f"{duration(context.per_step(where.total))} of that{steps}",
        "high",
        fact=f"Python collects garbage during the steps, {often}",
    )


def _within(context: RankContext, is_wanted: Callable[[str], bool]) -> Union:
    """When Python functions or scopes of these names ran, whole, where they reach into the steps.

    Collections do not nest, so of the frames around one (the call, torch's own event) only the outer counts.
    """
    events = context.trace.arrays
    low, high = context.host_window
    rows = np.flatnonzero(events.named(is_wanted) & events.where("python", "annotation"))
    rows = rows[(events.end[rows] > low) & (events.start[rows] < high)]
    return union(events.start[rows], events.end[rows])


@detector(
    "small_kernels",
    evidence="kernels",
    title="Many small kernels",
    fix="fusing the small kernels",
    launching=True,
    symptom=True,
    measures={
        "share of launches": "kernels under 10 µs, by number",
        "share of kernel time": "the same, by duration",
        "kernels per step": "all kernels",
    },
    threshold=f"over {MANY_SMALL_SHARE:.0%} of the kernels are under {SMALL_NS // 1000} µs",
    limits="The saving is the gaps before them; the kernels stay.",
)
def small_kernels(context: RankContext) -> Outcome:
    """More than half of all kernels are shorter than 10 µs."""
    work = context.work.take(context.work.is_kernel)
    if not len(work.event):
        return "no kernels"
    small = work.dur < SMALL_NS
    share = float(small.mean())
    if share <= MANY_SMALL_SHARE:
        return f"{share:.0%} of the kernels are shorter than {SMALL_NS // 1000} µs"
    # The gap in front of a small kernel is what its launch costs; the kernel itself has to run anyway.
    gaps = context.busy.gaps()
    order = np.argsort(work.start, kind="stable")
    next_kernel = np.searchsorted(work.start[order], gaps.end)
    next_kernel = np.minimum(next_kernel, len(order) - 1)
    next_kernel = order[next_kernel]
    lost = small[next_kernel] & (gaps.end - gaps.start < SMALL_NS)
    in_graphs = float(launched_by_graph(context.trace, work)[small].mean())
    where = union(gaps.start[lost], gaps.end[lost])
    time = float(work.dur[small].sum() / max(int(work.dur.sum()), 1))
    return Detection(
        (
            Quantity("share of launches", share, "fraction"),
            Quantity("share of kernel time", time, "fraction"),
            Quantity("kernels per step", context.per_step(len(work.event)), "count"),
        ),
        context.per_step(where.total),
        where,
        f"{share:.0%} of {context.per_step(len(work.event)):,.0f} kernels per step are shorter than "
        f"{SMALL_NS // 1000} µs ({time:.0%} of kernel time)"
        + (f", {in_graphs:.0%} of them in graphs" if in_graphs else "")
        + "; the saving is the gaps before them",
        "medium",
        in_graphs=in_graphs > MOSTLY_IN_GRAPHS,
    )

"""What the host does while the GPU is idle: nothing, Python, CPU ops, loading, collecting garbage."""

from __future__ import annotations

from collections import Counter

import numpy as np
from msgspec import Struct

from tracelens.analysis.fusable import StepWork
from tracelens.analysis.host import AVOIDABLE, CODE, GARBAGE, host_names, named, threads
from tracelens.analysis.roofline import with_surroundings
from tracelens.arrays import Bool, Int, isin, lookup, unique
from tracelens.devices import Device
from tracelens.errors import TracelensError
from tracelens.findings import Detection, Outcome, Quantity, RankContext, Remedy, detector
from tracelens.trace import (
    WORK_KINDS,
    Trace,
    Union,
    enclosing_op,
    intersection,
    rows_by_code,
    steps_of,
    union,
)
from tracelens.units import duration, milliseconds, times
from tracelens.what_if import NotApplicable, ScenarioContext, scenario
from tracelens.what_if.graph import Covered, Edge, Edit, Node, RunGraph

_NAMED = 3  # places that a sentence names
_MOST_OF_PLACE = 0.9  # share of a place's time from which on an op alone stands for the place
_IDLE_MEASURES = {
    "GPU idle per step": "idle time with this cause",
    "gaps per step": "gaps with time of this cause",
    "longest": "most time of this cause in one gap",
    "steps affected": "recorded steps with one of these gaps",
}
_ANY_IDLE = "any idle time with this cause, see `idle`"

_ON_CPU, _LAUNCHING, _COMMUNICATING = "launches nothing", "launches", "communicates"
"""What the ops do that keep the GPU waiting; chooses among the remedies."""
_PREPARING = {
    _LAUNCHING: ("Ops take long on the host before they launch", "ops that launch sooner"),
    _COMMUNICATING: (
        "Hooks around communication keep the GPU waiting",
        "fewer and larger units of communication",
    ),
}
"""Title and fix of ops that launch GPU work themselves."""

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
    remedy="Record once with Python frames (with_stack=True) and garbage collection to see the cause. Check "
    "in this order: data loading, logging, checkpoints, gc.freeze() and gc.disable(), other programs on the "
    "same cores, CPU binding.",
    remedies=(
        Remedy("{megatron}: --manual-gc rules out garbage collection.", framework=("megatron", "primus")),
        Remedy(
            "The bundled workload: --stack records them; --gc manual rules out garbage collection.",
            framework=("workload",),
        ),
        Remedy("The bundled workload: --stack records them.", framework=("workload_serve",)),
    ),
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
    remedy="Move what the named frames do out of the step, to another thread or process, or to every n-th "
    "step.",
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
    remedy="Keep other processes off that rank's cores, and give its threads cores of their own. taskset -cp "
    "PID shows its binding, cpu.stat of its cgroup whether a CPU limit throttles it (nr_throttled), pidstat "
    "-w its involuntary switches (nvcswch/s), perf sched timehist what runs instead. Where its own threads "
    "compete, lower OMP_NUM_THREADS.",
)
def stalled_host(context: RankContext) -> Outcome:
    """Ops of the host take over 0.5 ms and 10 times as long as their like, while the GPU is idle."""
    return _of_cause(context, "stalled host", "the host stands still inside an op")


@detector(
    "kernel_loading",
    evidence="idle",
    scenario="no_idle=kernel_loading",
    title="Kernels are loaded or compiled within the steps",
    fix="loading kernels before the step",
    launching=True,
    measures=_IDLE_MEASURES,
    threshold=f"{_ANY_IDLE}, in most steps",
    limits="Where the driver does not record it, loading counts as CPU ops.",
    remedy="Keep shapes few (padding, fixed capacity), so that no step needs a new kernel; warm up with all "
    "shapes; on NVIDIA, CUDA_MODULE_LOADING=EAGER loads all kernels at the start.",
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
    remedy="Load batches ahead of the step: more workers, pinned memory with non_blocking copies, "
    "preprocessing ahead of time or on the GPU.",
    remedies=(
        Remedy("{megatron}: --num-workers.", framework=("megatron", "primus")),
        Remedy(
            "TrainingArguments: dataloader_num_workers, dataloader_prefetch_factor, "
            "dataloader_persistent_workers, dataloader_pin_memory.",
            framework=("huggingface",),
            trains=True,
        ),
        Remedy(
            "torch's DataLoader: num_workers, prefetch_factor, persistent_workers, pin_memory.", plain=True
        ),
    ),
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
    remedies=(
        Remedy("Move the op to the GPU or out of the step.", cause=(_ON_CPU,)),
        Remedy(
            "The op prepares its launch for that long: hand it fewer tensors at once, call it less often, or "
            "capture it in a graph, which launches without preparing.",
            cause=(_LAUNCHING,),
        ),
        Remedy(
            "A hook of the framework prepares communication there. Larger units make it run less often "
            "(several layers in one fully_shard, a larger bucket_cap_mb of DDP), fewer and larger parameters "
            "in each make it shorter, and prefetching the next unit keeps the GPU busy meanwhile.",
            cause=(_COMMUNICATING,),
        ),
    ),
)
def cpu_ops(context: RankContext) -> Outcome:
    """Ops or calls take over 1 ms without a launch while the GPU is idle."""
    found = _of_cause(context, "CPU ops", "the host is busy in ops and calls")
    if not isinstance(found, Detection):
        return found
    kind = _kind_of_ops(context)
    if kind == _ON_CPU:
        return found._replace(cause=kind)
    # Less of its host time goes than if another place took it over.
    title, fix = _PREPARING[kind]
    return found._replace(cause=kind, title=title, fix=fix, confidence="medium")


def _kind_of_ops(context: RankContext) -> str:
    """What most of the time of CPU ops is: ops that launch nothing, or the way of others to their launch."""
    trace, work = context.trace, context.trace.work
    pieces = context.idle.take((context.idle.cause == CODE["CPU ops"]) & ~context.recurrence.once)
    op, dur = trace.once(enclosing_op)[pieces.inner], pieces.dur
    is_comm = work.kind == WORK_KINDS.index("comm")
    launches, communicates = (
        with_surroundings(trace.arrays, work.launch[mask])
        for mask in (np.ones(len(is_comm), dtype=bool), is_comm)
    )
    launching = lookup(launches, op, False)
    if 2 * dur[launching].sum() <= dur.sum():
        return _ON_CPU
    hooks = launching & lookup(communicates, pieces.host, False)
    return _COMMUNICATING if 2 * dur[hooks].sum() > dur[launching].sum() else _LAUNCHING


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
    remedy="Create communicators before the loop, keep barriers and CPU (gloo) collectives out of the step, "
    "and call collectives with async_op=True.",
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


class HostIdle(Struct, frozen=True):
    """When the GPU of a rank was idle because of what its host did, ns by the rank's own clock."""

    cause: Int  # code into the causes of idle time
    once: Bool  # whether its like is in no other step, see analyzer `idle`
    launch: Int  # event row of the call that launched the next work, -1 if the host does the work
    start: Int  # ns
    end: Int  # ns


def host_idle(trace: Trace, device: Device | None) -> HostIdle:
    """The idle time of a rank that has a cause on its host."""
    step = StepWork(trace, device)
    if not len(step.work.event):
        none = np.empty(0, dtype=np.int64)
        return HostIdle(none, none.astype(bool), none, none, none)
    rows = np.flatnonzero(np.isin(step.idle.cause, [CODE[name] for name in AVOIDABLE]))
    pieces = step.idle.take(rows)
    launches, calls = step.work.launch_call, trace.work.launch_call
    calls = calls[calls >= 0]
    # Nothing is launched behind the last step; its end belongs to the thread of the last launch.
    last = int(calls[np.argmax(trace.arrays.start[calls])]) if len(calls) else -1
    after = step.gaps.after[pieces.gap]
    launch = np.where((after >= 0) | step.work.cpu_only, lookup(launches, after, -1), last)
    return HostIdle(pieces.cause, step.recurrence.once[rows], launch, pieces.start, pieces.end)


@scenario(
    "no_idle", argument="=CAUSE", usual=("silent_host", "cpu_ops", "collective_call"), reads=(host_idle,)
)
def no_idle(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """The GPU is never idle because of CAUSE: silent_host, python_code, cpu_ops, collective_call, ….

    Assumes:
        The host does this at another time; host time during GPU work stays, and so does what happened in one
        step only (scenario no_once).
    """
    causes = {name.replace(" ", "_").lower(): name for name in AVOIDABLE}
    if argument.lower() not in causes:
        raise TracelensError(f"scenario no_idle={argument}: no such cause (known: {', '.join(causes)})")
    return _without(context, edit, causes[argument.lower()])


@scenario("no_once", reads=(host_idle,))
def no_once(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """The GPU is never idle because of what its host did in one step only, such as loading kernels.

    Assumes:
        Steps that are not recorded are like the others; host time during GPU work stays.
    """
    return _without(context, edit, "")


@scenario("data_loading_overlapped", reads=(host_idle,))
def data_loading_overlapped(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """The next batch is ready when the step needs it.

    Assumes:
        The host does this at another time; host time during GPU work stays, and so does what happened in one
        step only.
    """
    return _without(context, edit, "data loading")


def _without(context: ScenarioContext, edit: Edit, cause: str) -> str:
    """Shorten the host's time by the GPU's idle time of a cause that recurs, or all that happened once."""
    edges, saved_ns = context.once(_idle_behind_host, cause)
    if not len(edges):
        why = cause or "something that happened once"
        raise NotApplicable(f"the GPU is never idle between two host calls because of: {why}")
    _shorten(context.graph, edit, edges, saved_ns)
    return (
        f"the host does this at another time: {duration(int(saved_ns.sum()))} in {len(edges):,} pauses with "
        "an idle GPU disappear, over all ranks; host time during GPU work stays"
    )


def _idle_behind_host(context: ScenarioContext, cause: str) -> tuple[Int, Int]:
    """Edges with the host's time in which the GPU is idle for a cause, "" for all that happened once.

    And how long it is in each, ns.
    """
    graph, thread = context.graph, context.graph.stretch
    saved = np.zeros(len(graph.edge), dtype=np.int64)
    own_time = graph.host_time[graph.lag[graph.host_time] > 0]
    rank_of = graph.rank[graph.dst[own_time]]
    for rank, idle in enumerate(context.read(host_idle)):
        rows = np.flatnonzero((idle.cause == CODE[cause]) & ~idle.once if cause else idle.once)
        if not len(rows):
            continue
        edges = own_time[rank_of == rank]
        lane = thread[graph.dst[edges]]
        if graph.ranks[rank].cpu_only:  # no thread of it works in these pauses
            lane, of_rows = np.zeros(len(edges), dtype=np.int64), np.zeros(len(rows), dtype=np.int64)
        else:
            points = graph.nodes(rank, Node.POINT)
            event, first = np.unique(graph.event[points], return_index=True)
            rows = rows[isin(idle.launch[rows], event)]
            of_rows = thread[points[first[np.searchsorted(event, idle.launch[rows])]]]
        pieces = Covered(of_rows, idle.start[rows], idle.end[rows])
        end_ns = graph.start[graph.dst[edges]] - graph.shift[rank]
        saved[edges] = pieces.covered(lane, end_ns - graph.lag[edges], end_ns)
    edges = np.flatnonzero(saved)
    return edges, saved[edges]


def _shorten(graph: RunGraph, edit: Edit, edges: Int, saved_ns: Int) -> None:
    """Lags are shorter by their measured share, so that the order of several scenarios does not matter."""
    share = saved_ns / np.maximum(graph.lag[edges], 1)
    edit.lag[edges] = np.rint(edit.lag[edges] * (1 - share)).astype(np.int64)


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
    remedy="Collect manually, in the same step on all ranks, to make them pause together: gc.disable(), "
    "gc.freeze() once the model is built, and gc.collect() every N steps.",
    remedies=(
        Remedy("{megatron}: --manual-gc with --manual-gc-interval N.", framework=("megatron", "primus")),
        Remedy("torchtitan: training.gc_freq.", framework=("torchtitan",)),
        Remedy("The bundled workload: --gc manual.", framework=("workload",)),
    ),
)
def garbage_collection(context: RankContext) -> Outcome:
    """Python's garbage collector runs during steps."""
    if not len(context.work.event):
        return "no GPU work"
    events = context.trace.arrays
    collects = named(events, GARBAGE)
    collections = _within(context, collects)
    count = len(collections.start)
    if not count:
        return (
            "no garbage collection in the steps; to record it, use torch's profiler with with_stack and "
            "record_python_gc_info (experimental_config)"
        )
    during = intersection(collections, Union(*(np.array([edge]) for edge in context.host_window)))
    idle = context.idle_by("garbage collection")
    where = union(idle.start, idle.end)
    calls = _within(context, collects & ~events.named(lambda name: name.startswith(_EVENT)))
    # Who called is known from Python frames only; tracelens.record marks collections without them.
    framed = bool(events.where("python").any())
    called = int((calls.covered(collections.start, collections.end) > 0).sum())
    by = f" ({called / count:.0%} called by the program)" if framed else ""
    longest = int((collections.end - collections.start).max())
    each = context.per_step(count)
    often = f"{times(each)} in each" if each >= 1 else f"in about one of {1 / each:.0f}"
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


def _within(context: RankContext, is_wanted: Bool) -> Union:
    """When those of these events that are Python functions or scopes ran, whole, where they reach into steps.

    Collections do not nest, so of the frames around one (the call, torch's own event) only the outer counts.
    """
    events = context.trace.arrays
    low, high = context.host_window
    rows = np.flatnonzero(is_wanted & events.where("python", "annotation"))
    rows = rows[(events.end[rows] > low) & (events.start[rows] < high)]
    return union(events.start[rows], events.end[rows])


def garbage_collections(trace: Trace, device: Device | None) -> tuple[Int, Int, Int]:
    """(thread, start, end) of each garbage collection of a rank, ns by its own clock."""
    events = trace.arrays
    rows = np.flatnonzero(named(events, GARBAGE))
    # Most traces have none, and numbering threads takes longer than finding that out.
    thread = threads(trace)[rows] if len(rows) else rows
    return thread, events.start[rows], events.end[rows]


@scenario("no_garbage_collection", reads=(garbage_collections,))
def no_garbage_collection(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """Python's garbage collector does not run within the steps.

    Assumes:
        Collections happen between steps, at no cost to them.
    """
    graph = context.graph
    saved = np.zeros(len(graph.edge), dtype=np.int64)
    host_time = np.flatnonzero((graph.edge == Edge.HOST) & (graph.kind[graph.dst] != Node.WAITED))
    for rank, rows in rows_by_code(graph.rank[graph.dst[host_time]]).items():
        collecting = Covered(*context.read(garbage_collections)[rank])
        edges = host_time[rows]
        end_ns = graph.start[graph.dst[edges]] - graph.shift[rank]
        caller = graph.ranks[rank].lane[graph.slot[graph.dst[edges]]]
        saved[edges] = collecting.covered(caller, end_ns - graph.lag[edges], end_ns)
    edges = np.flatnonzero(saved)
    if not len(edges):
        raise NotApplicable("no garbage collection recorded between host calls")
    _shorten(graph, edit, edges, saved[edges])
    return f"removes {len(edges):,} garbage-collection pauses, {saved.sum() / 1e6:,.3f} ms over all ranks"

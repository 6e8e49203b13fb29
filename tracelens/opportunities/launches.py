"""Launches that come late or cost more than their kernels; quicker ones, and one for the whole step."""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct

from tracelens.analysis.host import GAP_NS
from tracelens.analysis.host import launch_bound as share_idle
from tracelens.arrays import Int, lookup, median, ordered, percentiles, unique
from tracelens.devices import Device
from tracelens.findings import Detection, Outcome, Quantity, RankContext, Remedy, detector
from tracelens.trace import Trace, launched_by_graph, matching, union
from tracelens.units import duration
from tracelens.what_if import NotApplicable, ScenarioContext, number, scenario
from tracelens.what_if.graph import Edge, Edit, Node, drop_host_time, marked_calls

LATE_LAUNCH_SHARE = 0.01
"""Any eager program has some late launches; up to this share of the time they do not matter."""

QUEUED_NS = 50_000
"""Work that was called so long before the work ahead of it ended has been ready to start at once: from a call
to the start on an idle GPU it takes 5 to 35 us."""

SMALL_NS = 10_000
"""Kernels below this duration are small: a trade-off, about what the launch of each costs."""

MANY_SMALL_SHARE = 0.5
"""Below this share of the kernels small ones are the odd reduction and counter, as every program has them."""

MOSTLY_IN_GRAPHS = 0.5
"""Share of the kernels from which a run has its graphs already: most of it is not told to use them."""

GRAPH_GAP_NS = 300
"""From the end of a kernel of a graph to the start of the next, mean of nine graphs on NVIDIA's GPUs: 141 and
564 ns on H200s (1,920 and 310 gaps), 29 to 481 ns on H100s (seven graphs of 218 to 779 kernels, steps without
the profiler). On MI300Xs it is 38 and 54 ns (543 and 336 gaps)."""

_GRAPH = re.compile("GraphLaunch")


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
    remedies=(
        Remedy(
            "Launch less (a {graph} of the step, torch.compile, fused kernels), and bind each process to "
            "its GPU's NUMA node (numactl --cpunodebind --membind). `idle` shows what the host did in long "
            "gaps.",
            in_graphs=False,
            compiled=False,
        ),
        Remedy(
            'Launch less (a {graph} of the step, as torch.compile makes with mode="reduce-overhead"; fused '
            "kernels), and bind each process to its GPU's NUMA node (numactl --cpunodebind --membind). "
            "`idle` shows what the host did in long gaps.",
            in_graphs=False,
            compiled=True,
        ),
        Remedy(
            "Graphs launch most kernels already: capture what still runs beside them, or prepare the inputs "
            "of a replay while the one before it runs, and bind each process to its GPU's NUMA node "
            "(numactl --cpunodebind --membind). `idle` shows what the host did in long gaps.",
            in_graphs=True,
        ),
        Remedy("Primus: ENABLE_NUMA_BINDING=1.", framework=("primus",)),
        Remedy(
            "Megatron-LM: --cuda-graph-impl (--enable-cuda-graph or --external-cuda-graph in earlier "
            "releases).",
            framework=("megatron",),
            in_graphs=False,
        ),
        Remedy(
            "transformers: model.compile(), or TrainingArguments(torch_compile=True) with the Trainer.",
            framework=("huggingface",),
            in_graphs=False,
            compiled=False,
            trains=True,
        ),
        Remedy(
            "transformers: model.compile().",
            framework=("huggingface",),
            in_graphs=False,
            compiled=False,
            trains=False,
        ),
        Remedy(
            "vLLM: leave --enforce-eager out, and capture graphs for the batch sizes that occur "
            "(--compilation-config, cudagraph_capture_sizes).",
            framework=("vllm",),
            in_graphs=False,
        ),
        Remedy(
            "SGLang: leave --disable-cuda-graph out, and capture larger batches with --cuda-graph-max-bs.",
            framework=("sglang",),
            in_graphs=False,
        ),
        Remedy(
            "ATOM: leave --enforce-eager out, and capture the batch sizes that occur with "
            "--cudagraph-capture-sizes.",
            framework=("atom",),
            in_graphs=False,
        ),
        Remedy(
            "The bundled workload: --graph step, --sync-free 3, --numa bind.",
            framework=("workload",),
            in_graphs=False,
        ),
        Remedy("The bundled workload: --numa bind.", framework=("workload",), in_graphs=True),
        Remedy("The bundled workload: --graph on.", framework=("workload_serve",), in_graphs=False),
        Remedy("--kernarg-pool enlarges the kernel-argument pool.", framework=("workload",), vendor=("amd",)),
        Remedy(
            "ROCm: enlarge the kernel-argument pool with HSA_KERNARG_POOL_SIZE=12582912.", vendor=("amd",)
        ),
    ),
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
    late[context.idle.gap[context.is_idle_by(*causes)]] = True
    late &= gaps.after >= 0
    rows = np.flatnonzero(context.is_idle_by(*causes, "dispatch") & late[context.idle.gap])
    start, end = context.idle.start[rows], context.idle.end[rows]
    where = union(start, end)
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
    floor_ns = max(float(median(queued_ns)), GAP_NS) if len(queued_ns) else float(GAP_NS)
    number = context.per_step(int(late.sum()))
    dur = np.zeros(len(late), dtype=np.int64)
    np.add.at(dur, context.idle.gap[rows], end - start)
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
            p50, p99 = percentiles(values, 50, 99).tolist()
            quantities += [Quantity(f"{measure}, p50", p50, "ns"), Quantity(f"{measure}, p99", p99, "ns")]
            launch_times.append(f"{measure}: p50 {duration(p50)}, p99 {duration(p99)}")
    if any(events.names[code].startswith("hip") for code in unique(events.name[call])):
        launch_times.append("on ROCm")
    idle, span = share_idle(work, context.called[launched], work.end[launched])
    of_graphs = launched_by_graph(context.trace, work)[work.is_kernel]
    in_graphs = float(of_graphs.mean()) if len(of_graphs) else 0.0
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
    remedies=(
        Remedy(
            "Capture the step in a {graph} or compile it (torch.compile), which fuses pointwise chains; the "
            "router and permutation of MoE layers have fused kernels.",
            in_graphs=False,
            compiled=False,
        ),
        Remedy(
            'Capture the step in a {graph}, as torch.compile does with mode="reduce-overhead"; the router '
            "and permutation of MoE layers have fused kernels.",
            in_graphs=False,
            compiled=True,
        ),
        Remedy(
            "A {graph} launches them already, so only fewer kernels help: torch.compile before the capture "
            "fuses pointwise chains; the router and permutation of MoE layers have fused kernels.",
            in_graphs=True,
            compiled=False,
        ),
        Remedy(
            "A {graph} launches them already and torch.compile has fused pointwise chains, so only fewer "
            "kernels help: the router and permutation of MoE layers have fused ones.",
            in_graphs=True,
            compiled=True,
        ),
        Remedy(
            "Megatron-LM: --cuda-graph-impl, --moe-router-fusion, --moe-permute-fusion.",
            framework=("megatron",),
            in_graphs=False,
        ),
        Remedy(
            "Megatron-LM: --moe-router-fusion, --moe-permute-fusion.", framework=("megatron",), in_graphs=True
        ),
        Remedy("Primus: moe_permute_fusion, moe_use_fused_router_with_aux_score.", framework=("primus",)),
        Remedy(
            "The bundled workload: --graph step, --router fused, --permute fused.",
            framework=("workload",),
            in_graphs=False,
        ),
        Remedy(
            "The bundled workload: --router fused, --permute fused.", framework=("workload",), in_graphs=True
        ),
        Remedy(
            "The bundled workload: --graph on, --set router=fused, --set permute=fused.",
            framework=("workload_serve",),
            in_graphs=False,
        ),
        Remedy(
            "The bundled workload: --set router=fused, --set permute=fused.",
            framework=("workload_serve",),
            in_graphs=True,
        ),
    ),
)
def small_kernels(context: RankContext) -> Outcome:
    """More than half of all kernels are shorter than 10 µs."""
    kernels = np.flatnonzero(context.work.is_kernel)
    if not len(kernels):
        return "no kernels"
    start, dur = context.work.start[kernels], context.work.dur[kernels]
    small = dur < SMALL_NS
    share = float(small.mean())
    if share <= MANY_SMALL_SHARE:
        return f"{share:.0%} of the kernels are shorter than {SMALL_NS // 1000} µs"
    # The gap in front of a small kernel is what its launch costs; the kernel itself has to run anyway.
    gaps = context.busy.gaps()
    order = np.argsort(start, kind="stable")
    next_kernel = np.searchsorted(start[order], gaps.end)
    next_kernel = np.minimum(next_kernel, len(order) - 1)
    next_kernel = order[next_kernel]
    lost = small[next_kernel] & (gaps.end - gaps.start < SMALL_NS)
    in_graphs = float(launched_by_graph(context.trace, context.work)[kernels[small]].mean())
    where = union(gaps.start[lost], gaps.end[lost])
    time = float(dur[small].sum() / max(int(dur.sum()), 1))
    return Detection(
        (
            Quantity("share of launches", share, "fraction"),
            Quantity("share of kernel time", time, "fraction"),
            Quantity("kernels per step", context.per_step(len(kernels)), "count"),
        ),
        context.per_step(where.total),
        where,
        f"{share:.0%} of {context.per_step(len(kernels)):,.0f} kernels per step are shorter than "
        f"{SMALL_NS // 1000} µs ({time:.0%} of kernel time)"
        + (f", {in_graphs:.0%} of them in graphs" if in_graphs else "")
        + "; the saving is the gaps before them",
        "medium",
        in_graphs=in_graphs > MOSTLY_IN_GRAPHS,
    )


class LaunchCalls(Struct, frozen=True):
    """The calls of one rank that launch GPU work."""

    event: Int  # row of each, ascending
    dur: Int  # of the call, ns
    name: Int  # code into `names`
    names: list[str]  # of the calls


def launch_calls(trace: Trace, device: Device | None) -> LaunchCalls:
    """The calls of one rank that launch GPU work."""
    events, work = trace.arrays, trace.work
    event = unique(work.launch[work.launch >= 0])
    codes, name = np.unique(events.name[event], return_inverse=True)
    names = [events.names[code] for code in codes.tolist()]
    return LaunchCalls(event, (events.end - events.start)[event], name.ravel(), names)


def has_queued_work(trace: Trace, device: Device | None) -> bool:
    """Whether work of one rank was ever launched before the work ahead of it on its stream began.

    Only there the trace shows the gap between two kernels that are both ready.
    """
    work = trace.work
    rows = ordered(work.lane, work.start)
    ahead, behind = rows[:-1], rows[1:]
    queued = (work.lane[ahead] == work.lane[behind]) & (work.launch[behind] >= 0)
    return bool((queued & (trace.arrays.start[work.launch[behind]] < work.start[ahead])).any())


@scenario("step_graph", reads=(launch_calls, has_queued_work))
def step_graph(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """The step's GPU work is launched as one graph; calls that wait for the GPU split it.

    Assumes:
        One launch remains at the start of each step and one after each call that waits for the GPU. Shapes
        must not change between steps. Where the host is always late, the trace shows no gap between kernels
        that are ready: the usual one of graphs is assumed.
    """
    graph = context.gpu_graph()
    by_rank = context.read(launch_calls)
    eager = [calls.event[~matching(calls.names, _GRAPH)[calls.name]] for calls in by_rank]
    launches = marked_calls(graph, eager, Node.POINT)
    # A graph holds the launches behind others; those behind a step mark or a wait begin one.
    before = np.full(len(graph), -1, dtype=np.int64)
    previous = np.flatnonzero(graph.is_edge(Edge.HOST, Edge.HANDOVER, Edge.ORDER))
    before[graph.dst[previous]] = graph.src[previous]
    waits = np.zeros(len(graph), dtype=bool)
    sync = graph.edges(Edge.SYNC)
    waits[graph.dst[sync[edit.kept[sync]]]] = True
    nodes = np.flatnonzero(launches)
    previous_nodes = before[nodes]
    follows = lookup(launches, previous_nodes, False)
    # A call that no longer waits for anything splits nothing.
    passed = lookup((graph.kind == Node.WAITED) & ~waits, previous_nodes, False)
    follows |= passed & lookup(launches, lookup(before, lookup(before, previous_nodes, -1), -1), False)
    captured = np.zeros(len(graph), dtype=bool)
    captured[nodes[follows]] = True
    if not captured.any():
        raise NotApplicable("no two consecutive launches that a graph could hold")
    drop_host_time(graph, edit, previous[captured[graph.dst[previous]]])
    edit.delay[captured] = 0
    work = np.zeros(len(graph), dtype=bool)
    launch = graph.edges(Edge.LAUNCH)
    work[graph.dst[launch[captured[graph.src[launch]]]]] = True
    behind = graph.edges_to(Edge.STREAM, work)
    edit.lag[behind] = np.minimum(edit.lag[behind], GRAPH_GAP_NS)
    never_queued = np.flatnonzero(~np.array(context.read(has_queued_work), dtype=bool))
    edit.lag[behind[np.isin(graph.rank[graph.dst[behind]], never_queued)]] = GRAPH_GAP_NS
    pieces = int(launches.sum() - captured.sum())
    return (
        f"{int(captured.sum()):,} of {int(launches.sum()):,} launches disappear with the host time before "
        f"them, but for its pauses; {pieces:,} remain: one at the start of each step and one after each call "
        f"that waits for the GPU; queued kernels follow each other within {GRAPH_GAP_NS / 1000:g} µs; shapes "
        "must not change between steps"
    )


@scenario("no_graphs", argument="=US", usual=(), reads=(launch_calls,))
def no_graphs(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """Each kernel of a graph is launched by a call of its own, US microseconds of host time apart.

    Assumes:
        Kernels, their order and their streams stay the same. The time on the way to a launch, Python and ops
        included, is the same for all: a run without graphs shows it, a replay does not.
    """
    apart_ns = 1000 * number(argument, f"no_graphs={argument}")
    graph = context.gpu_graph()
    dur = np.full(len(graph), -1, dtype=np.int64)  # of graph launches
    for rank, calls in enumerate(context.read(launch_calls)):
        is_graph = matching(calls.names, _GRAPH)[calls.name]
        points = graph.nodes(rank, Node.POINT)
        row = np.searchsorted(calls.event[is_graph], graph.event[points])
        row[~np.isin(graph.event[points], calls.event[is_graph])] = -1
        dur[points] = lookup(calls.dur[is_graph], row, -1)
    launched = np.flatnonzero((graph.edge == Edge.LAUNCH) & (dur[graph.src] >= 0))
    if not len(launched):
        raise NotApplicable("no graph launch in the trace")
    launched = launched[ordered(graph.src[launched], graph.start[graph.dst[launched]])]
    source, first, count = np.unique(graph.src[launched], return_index=True, return_counts=True)
    position = np.arange(len(launched)) - np.repeat(first, count)
    edit.set_lag(launched, edit.lag[launched] + position * apart_ns)
    kernels = np.zeros(len(graph), dtype=np.int64)
    kernels[source] = count
    after = np.flatnonzero((graph.edge == Edge.HOST) & (kernels[graph.src] > 0))
    call = graph.src[after]
    edit.set_lag(after, np.maximum(edit.lag[after] - dur[call], 0) + kernels[call] * apart_ns)
    return (
        f"{len(launched):,} launches take the place of {len(source):,} graph launches, "
        f"{duration(apart_ns)} of host time each; kernels, their order and streams stay the same"
    )


@scenario("launch_cost", argument="=FACTOR", reads=(launch_calls,))
def launch_cost(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """Launch calls take FACTOR times as long; without FACTOR, as usual on the fastest rank at most.

    Assumes:
        The way from a call to the start of its kernel, and host time between calls, stay the same.
    """
    graph, by_rank = context.gpu_graph(), context.read(launch_calls)
    factor = number(argument, f"launch_cost={argument}") if argument else 0.0
    # The lowest of the ranks' medians for each name of a call, ns.
    usual: dict[str, float] = {}
    for calls in [] if factor else by_rank:
        for code, name in enumerate(calls.names):
            usual[name] = min(usual.get(name, np.inf), float(median(calls.dur[calls.name == code])))
    saved = np.zeros(len(graph.edge))
    for rank, calls in enumerate(by_rank):
        if not len(calls.event):
            continue
        target = calls.dur * factor
        if not factor:
            least = np.array([usual[name] for name in calls.names], dtype=float)
            target = np.minimum(calls.dur, least[calls.name])
        own = np.flatnonzero((graph.edge == Edge.HOST) & (graph.rank[graph.src] == rank))
        own = own[(graph.kind[graph.src[own]] == Node.POINT) & (graph.kind[graph.dst[own]] != Node.WAITED)]
        event = graph.event[graph.src[own]]
        index = np.minimum(np.searchsorted(calls.event, event), len(calls.event) - 1)
        launches = calls.event[index] == event
        saved[own[launches]] = (calls.dur - target)[index[launches]]
    saved = np.minimum(saved, graph.lag)
    if not saved.any():
        raise NotApplicable("no launch call takes longer than usual, or none is in the trace")
    edit.set_lag(saved != 0, (edit.lag * (1 - saved / np.maximum(graph.lag, 1)))[saved != 0])
    what = (
        f"take {factor:g}x as long"
        if factor
        else "take no longer than their name's median on the fastest rank"
    )
    return (
        f"launch calls {what}: {duration(abs(saved.sum()))} of host time over all ranks; from a call to the "
        "start of its kernel, and what the host does between calls, stay the same"
    )


@scenario("launch_free")
def launch_free(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """The host takes no time: what the GPUs could do if never launch-bound.

    Assumes:
        Calls that wait for the GPU still wait; launch latencies stay the same. Queued kernels follow each
        other as they would in a graph.
    """
    graph = context.gpu_graph()
    host_time = graph.is_edge(Edge.HOST, Edge.HANDOVER, Edge.ORDER)
    edit.lag[host_time] = 0
    edit.delay[graph.dst[host_time]] = 0
    queued = graph.is_edge(Edge.STREAM)
    edit.lag[queued] = np.minimum(edit.lag[queued], GRAPH_GAP_NS)
    return (
        "the host takes no time except in blocking calls; launch latencies stay the same; queued kernels "
        f"follow each other within {GRAPH_GAP_NS / 1000:g} µs, as in a graph"
    )


@scenario("host", argument="=FACTOR", usual=())
def host(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """Host time between calls is multiplied by FACTOR: a faster CPU, less Python, no profiler.

    Assumes:
        Launch latencies stay the same.
    """
    graph, factor = context.gpu_graph(), number(argument, f"host={argument}")
    host_time = graph.host_time
    edit.set_lag(host_time, edit.lag[host_time] * factor)
    return f"host time between calls x {factor:g}; launch latencies stay the same"


@scenario("identity")
def identity(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """Nothing changes: the replay reproduces the measured step."""
    return "nothing changes"

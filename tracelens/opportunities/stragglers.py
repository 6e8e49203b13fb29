"""Ranks that come late to a collective, and hold up the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tracelens.analysis.comm import SEND_RECV
from tracelens.analysis.stragglers import NOISE, SIGNIFICANT, SMALL, TOO_FEW, UNTESTED
from tracelens.arrays import Bool, Float, Int, median, unique
from tracelens.errors import TracelensError
from tracelens.findings import (
    Confidence,
    Detection,
    Detections,
    Quantity,
    Remedy,
    detector,
    in_steps,
    step_count,
)
from tracelens.table import Result, Table, codes
from tracelens.trace import union
from tracelens.units import duration
from tracelens.what_if import NotApplicable, ScenarioContext, scenario
from tracelens.what_if.graph import Edge, Edit, Node, of_calls, scale_pace

BLAMED_SHARE = 0.1
"""A rank with a smaller share of the waiting is not worth a scenario."""

STEADY_SHARE = 0.9
"""Least share of the waiting that has causes which a steady pace removes, for that to be the scenario."""

_OF_HOST = (
    "silent_host",
    "python_code",
    "stalled_host",
    "data_loading",
    "blocking_call",
    "garbage_collection",
    "collective_call",
    "late_launch",
)
EXPLAINED = ("extra_work", "slow_kernels", *_OF_HOST)
"""Causes that can be removed on the late rank."""
PASSING = ("kernel_loading", "profiler", "recording_began")
"""Causes that go by themselves: what nobody has to fix counts nowhere."""
UNEVEN = ("token_load",)
UNEXPLAINED = ("inherited", "unknown")
NOBODY = "no significant straggler"

_LATE_RANK = {
    "token_load": "which has more tokens",
    "extra_work": "which does more work",
    "slow_kernels": "whose GPU is slower",
    "silent_host": "whose host is silent",
    "python_code": "whose host runs other Python code",
    "stalled_host": "whose host stalls inside ops",
    "data_loading": "whose host loads data",
    "blocking_call": "whose host blocks on its GPU",
    "garbage_collection": "whose host collects garbage",
    "collective_call": "whose host is held in a collective call",
    "late_launch": "whose host launches late",
}
"""Cause to what the title of a finding says of the late rank."""

_WAITING_MEASURES = {
    "waiting for these causes": "exposed waiting in collectives, per step",
    "waiting for CAUSE": "part of it with this cause",
    "all exposed waiting": "exposed waiting in collectives for any cause, per step",
    "waits per step": "stretches of such waiting",
    "share for the worst rank": "part of the waiting that is for the rank most waited for",
}
_WAITING_THRESHOLD = "waiting for a significant straggler, see `stragglers`, or too few steps to tell"


@detector(
    "stragglers",
    evidence="stragglers",
    scenario="median_pace",
    title="Ranks wait for late ranks",
    fix="ranks at equal pace",
    needs=("collectives", "stragglers"),
    measures=_WAITING_MEASURES,
    threshold=_WAITING_THRESHOLD,
    limits="Needs the traces of the ranks of a group.",
    remedies=(
        Remedy(
            "See what that rank's Python does there (record with stack=True): data, logging, saving, "
            "unrecorded garbage collection, other processes on its cores.",
            cause=("silent_host",),
        ),
        Remedy(
            "Move what the named frames do out of the step, or to all ranks at once.", cause=("python_code",)
        ),
        Remedy(
            "Check what else runs on that rank's cores: its binding (taskset -cp PID), a CPU limit of its "
            "cgroup (cpu.stat: nr_throttled), involuntary switches (pidstat -w), what runs instead (perf "
            "sched timehist). Give each rank cores of its own.",
            cause=("stalled_host",),
        ),
        Remedy(
            "Load that rank's batches ahead of the step: more workers, prefetching, its share of the "
            "storage.",
            cause=("data_loading",),
        ),
        Remedy(
            "Drop the calls on that rank that wait for its GPU: .item(), copies to the host, prints of "
            "tensors.",
            cause=("blocking_call",),
        ),
        Remedy(
            "Collect garbage on all ranks at once, every N steps: gc.disable(), gc.collect().",
            cause=("garbage_collection",),
        ),
        Remedy(
            "Create communicators before the loop; call collectives with async_op=True.",
            cause=("collective_call",),
        ),
        Remedy(
            "Bind that rank to the cores of its GPU's NUMA node, keep other processes off them; launch "
            "fewer kernels, or capture them in a graph.",
            cause=("late_launch",),
        ),
        Remedy("Spread the work that only this rank does over the ranks, or drop it.", cause=("extra_work",)),
        Remedy(
            "Check clocks, power cap, temperature and neighbors of that GPU: nvidia-smi -q -d "
            "CLOCK,POWER,TEMPERATURE,PIDS.",
            vendor=("nvidia",),
            cause=("slow_kernels",),
        ),
        Remedy(
            "Check clocks, power cap, temperature and neighbors of that GPU: amd-smi metric, amd-smi "
            "process.",
            vendor=("amd",),
            cause=("slow_kernels",),
        ),
        Remedy(
            "Check what shares that rank's cores, its number of threads, clocks and NUMA binding.",
            vendor=("cpu",),
            cause=("slow_kernels",),
        ),
        Remedy(
            "{megatron}: --manual-gc with --manual-gc-interval on all ranks.",
            framework=("megatron", "primus"),
            cause=("silent_host", "garbage_collection"),
        ),
        Remedy(
            "Late launches on ROCm: HSA_KERNARG_POOL_SIZE=12582912.", vendor=("amd",), cause=("late_launch",)
        ),
    ),
)
def stragglers(results: Mapping[str, Result]) -> Detections:
    """GPUs wait in collectives for a rank that its host or a slower GPU makes late."""
    return _waiting(results, EXPLAINED, "medium", (SIGNIFICANT, TOO_FEW))


@detector(
    "stragglers_load",
    evidence="stragglers",
    scenario="balanced",
    title="Ranks wait for ranks with more work",
    fix="balancing the experts",
    needs=("collectives", "stragglers"),
    measures=_WAITING_MEASURES,
    threshold="any exposed waiting with this cause",
    limits="Assumes that the work can be spread evenly.",
    remedy="Balance the work: token routing (auxiliary loss, router bias, expert placement by load), "
    "sequences by length, layers by time.",
    remedies=(
        Remedy(
            "{megatron}: --moe-router-load-balancing-type, --moe-aux-loss-coeff, "
            "--moe-router-enable-expert-bias.",
            framework=("megatron", "primus"),
        ),
        Remedy("--enable-eplb places experts by load.", framework=("vllm", "sglang")),
    ),
)
def stragglers_load(results: Mapping[str, Result]) -> Detections:
    """GPUs wait in collectives for a rank that has more to compute: larger shapes or more calls."""
    # All waiting, as mean of the ranks, is what the longest work takes more than the mean.
    return _waiting(results, UNEVEN, "medium", None)


@detector(
    "stragglers_unexplained",
    evidence="stragglers",
    title="Ranks wait for ranks that are late without a visible cause",
    fix="ranks at equal pace",
    needs=("collectives", "stragglers"),
    measures=_WAITING_MEASURES,
    threshold=_WAITING_THRESHOLD,
    limits="The trace does not show the cause, so no scenario removes it.",
    remedy="Record all ranks with shapes and Python stacks, starting at a step they begin together; the "
    "`stragglers` tables then name the late ranks and the cause of their lateness.",
)
def stragglers_unexplained(results: Mapping[str, Result]) -> Detections:
    """GPUs wait in collectives for a rank whose lateness is inherited or has no recorded cause."""
    return _waiting(results, UNEXPLAINED, "low", (SIGNIFICANT, TOO_FEW))


@detector(
    "stragglers_noise",
    evidence="stragglers",
    scenario="median_pace",
    title="Ranks wait for each other, without a significant straggler",
    fix="ranks at equal pace",
    needs=("collectives", "stragglers"),
    measures=_WAITING_MEASURES,
    threshold="exposed waiting, none of it for a significant straggler",
    limits="Some waiting remains in any run, as ranks always differ a little.",
    remedies=(
        Remedy(
            "Check what hits ranks at different times: garbage collection (collect on all ranks at once), "
            "launches (NUMA binding), clocks. Record more steps to separate a straggler from noise.",
            vendor=("gpu",),
        ),
        Remedy(
            "Check what hits ranks at different times: cores shared between ranks or with other processes, "
            "garbage collection, data loading. Record more steps to separate a straggler from noise.",
            vendor=("cpu",),
        ),
        Remedy(
            "{megatron}: --manual-gc with --manual-gc-interval on all ranks.",
            framework=("megatron", "primus"),
        ),
        Remedy("Late launches on ROCm: HSA_KERNARG_POOL_SIZE=12582912.", vendor=("amd",)),
    ),
)
def stragglers_noise(results: Mapping[str, Result]) -> Detections:
    """GPUs wait in collectives for varying ranks, or for less time than identical GPUs differ by."""
    return _waiting(results, (*EXPLAINED, *UNEXPLAINED), "low", (NOISE, SMALL, UNTESTED))


def _waiting(
    results: Mapping[str, Result],
    causes: Sequence[str],
    confidence: Confidence,
    significance: Sequence[str] | None,
) -> Detections:
    """Detections of the ranks that wait for one of these causes.

    Args:
        results: of the analyzers.
        causes: that count.
        confidence: of the detections.
        significance: of the late rank for the cause, those that count; None for all.
    """
    lost = results["stragglers"].data["lost"]
    # What a stage of a pipeline waits in a receive is the pipeline's bubble.
    counted = in_steps(lost) & ~lost.coded("collective").equals(SEND_RECV)
    if not counted.any():
        if len(results["collectives"].data["participants"]):
            return "no exposed waiting in collectives"
        return "no collective is recorded on several ranks: waiting is unknown"
    cause = lost.coded("cause")
    for_causes = counted & cause.mask(causes.__contains__)
    if not for_causes.any():
        other_causes = ", ".join(sorted(set(cause.texts(counted))))
        return f"the waiting in collectives has other causes: {other_causes}"
    of_late_rank, certain = _late_rank_significance(results["stragglers"])
    if significance is not None:
        for_causes &= np.isin(of_late_rank, significance)
        if not for_causes.any():
            named = SIGNIFICANT in significance
            return NOBODY if named else "all waiting is for significant stragglers"
    note, scenario, dur = "", None, lost.array("dur_ns")
    if significance is not None and SIGNIFICANT not in significance:
        note = NOBODY
        scenario = _steady_pace(lost, counted, for_causes & ~cause.equals("extra_work"))
    elif significance is not None:
        if not (for_causes & (of_late_rank == SIGNIFICANT)).any():
            confidence, note = "low", "too few steps to tell this from noise"
        # The late ranks take no longer than the others; their own causes only.
        scenario = ""
        if cause.mask(EXPLAINED.__contains__)[for_causes].all():
            late, index = np.unique(lost.array("late_rank")[for_causes], return_inverse=True)
            blamed_ns = np.bincount(index, weights=dur[for_causes])
            worst = blamed_ns >= BLAMED_SHARE * blamed_ns.sum()
            scenario = _paces(late[worst], blamed_ns[worst])
    named = note != NOBODY and causes != UNEXPLAINED
    title, fix, main_cause = "", "", ""
    if named:
        sure = for_causes & certain
        title, fix, main_cause = _blamed(lost, sure if sure.any() else for_causes, scenario or "")
    steps = step_count(results)
    return {
        rank: _waiting_of_rank(lost, rank, counted, for_causes, causes, steps, confidence, note)._replace(
            scenario=scenario, title=title, fix=fix, cause=main_cause
        )
        for rank in unique(lost.array("rank")[for_causes]).tolist()
    }


def _steady_pace(lost: Table, counted: Bool, random: Bool) -> str:
    """The scenario that removes the waiting of these rows, and hardly any other; "" where there is none.

    No rank is later than the others, if that is all that ranks wait for. Else only ranks count that hardly
    anybody waits for because they have more to do, or because they are stragglers: a steady pace would
    remove that, too.
    """
    late, row = np.unique(lost.array("late_rank")[counted], return_inverse=True)
    dur = lost.array("dur_ns")[counted].astype(float)
    whole_ns, random_ns = np.bincount(row, weights=dur), np.bincount(row, weights=dur * random[counted])
    if random_ns.sum() >= STEADY_SHARE * whole_ns.sum():
        return "median_pace"
    steady = (random_ns >= STEADY_SHARE * whole_ns) & (random_ns >= BLAMED_SHARE * random_ns.sum())
    return _paces(late[steady], random_ns[steady])


def _paces(ranks: Int, blamed_ns: Float) -> str:
    """The scenario in which these ranks keep the pace of the others, the most blamed one first."""
    return "+".join(f"median_pace={rank}" for rank in ranks[np.argsort(-blamed_ns, kind="stable")].tolist())


def _blamed(lost: Table, rows: Bool, scenario: str) -> tuple[str, str, str]:
    """Title and fix of a finding, "" where several ranks are alike to blame; the cause of most waiting."""
    dur = lost.array("dur_ns")[rows].astype(float)
    causes, of_cause = np.unique(np.array(lost.texts("cause", rows)), return_inverse=True)
    ranks, of_rank = np.unique(lost.array("late_rank")[rows], return_inverse=True)
    by_cause, by_rank = np.bincount(of_cause, weights=dur), np.bincount(of_rank, weights=dur)
    cause = str(causes[by_cause.argmax()]) if by_cause.max() > dur.sum() / 2 else ""
    rank = int(ranks[by_rank.argmax()])
    if by_rank.max() <= (1 - BLAMED_SHARE) * dur.sum():
        if by_rank.max() <= dur.sum() / 2:
            return "", "", cause
        own = np.bincount(of_cause, weights=dur * (of_rank == by_rank.argmax()))
        of_most = str(causes[own.argmax()]) if own.max() > by_rank.max() / 2 else ""
        said = _LATE_RANK.get(of_most, "")
        return f"Ranks wait for late ranks, most for rank {rank}{said and f', {said}'}", "", cause or of_most
    said = _LATE_RANK.get(cause, "")
    title, fix = f"Ranks wait for rank {rank}{said and f', {said}'}", ""
    if scenario == f"median_pace={rank}":
        fix = f"rank {rank}{said and f', {said},'} at the pace of the others"
    return title, fix, cause


def _late_rank_significance(stragglers: Result) -> tuple[NDArray[np.str_], Bool]:
    """How significant the late rank is for the cause, by row of `lost`, and whether for that cause itself.

    Whatever else the host of a straggler does late goes with what it is a straggler for: one that another
    process keeps from its core stalls inside ops, between them and in calls, and launches late.
    """
    lost, table = stragglers.data["lost"], stragglers.data["causes"]
    pairs = zip(table.array("rank").tolist(), table.texts("cause"), strict=True)
    of_pair = dict(zip(pairs, table.texts("significance"), strict=True))
    # What a rank has from before is as significant as what else it is late for.
    ranks = stragglers.data["stragglers"]
    of_rank = dict(zip(ranks.array("rank").tolist(), ranks.texts("significance"), strict=True))
    of_pair = {pair: of_rank[pair[0]] if text == UNTESTED else text for pair, text in of_pair.items()}
    certain = {pair for pair, text in of_pair.items() if text == SIGNIFICANT}
    held = {rank for rank, cause in certain if cause in _OF_HOST}
    of_pair |= {pair: SIGNIFICANT for pair in of_pair if pair[0] in held and pair[1] in _OF_HOST}
    waits = [*zip(lost.array("late_rank").tolist(), lost.texts("cause"), strict=True)]
    of_row = np.array([of_pair.get(wait, UNTESTED) for wait in waits], dtype=np.str_)
    return of_row, np.array([wait in certain for wait in waits], dtype=bool)


def _waiting_of_rank(
    lost: Table,
    rank: int,
    counted: Bool,
    for_causes: Bool,
    causes: Sequence[str],
    steps: int,
    confidence: Confidence,
    note: str,
) -> Detection:
    """What a rank loses.

    Args:
        lost: the table.
        rank: that waits.
        counted: the rows that count.
        for_causes: those of them with one of the causes.
        causes: in question.
        steps: number of steps.
        confidence: of the detection.
        note: what limits it, "" where nothing does.
    """
    counted, for_causes = (mask & (lost.array("rank") == rank) for mask in (counted, for_causes))
    start, dur, late = (lost.array(name) for name in ("local_ts_ns", "dur_ns", "late_rank"))
    cause = lost.coded("cause")
    by_cause = {name: float(dur[for_causes & cause.equals(name)].sum()) / steps for name in causes}
    by_cause = {name: ns for name, ns in sorted(by_cause.items(), key=lambda item: -item[1]) if ns}
    saving, total = sum(by_cause.values()), float(dur[counted].sum()) / steps
    blamed = {
        int(late_rank): int(dur[for_causes & (late == late_rank)].sum())
        for late_rank in unique(late[for_causes])
    }
    worst = max(blamed, key=lambda late_rank: blamed[late_rank])
    share = blamed[worst] / max(sum(blamed.values()), 1)
    listed = ", ".join(f"{name.replace('_', ' ')} {duration(ns)}" for name, ns in by_cause.items())
    passing = float(dur[counted & cause.mask(PASSING.__contains__)].sum()) / steps
    whole = f"{duration(total)} per step of exposed waiting in collectives, including {listed}; "
    if note == NOBODY:  # what ranks wait for stragglers is no part of it
        whole = f"{duration(saving)} per step of exposed waiting in collectives: {listed}; "
    return Detection(
        (
            Quantity("waiting for these causes", saving, "ns"),
            *(Quantity(f"waiting for {name.replace('_', ' ')}", ns, "ns") for name, ns in by_cause.items()),
            Quantity("all exposed waiting", total, "ns"),
            Quantity("waits per step", int(for_causes.sum()) / steps, "count"),
            Quantity("share for the worst rank", share, "fraction"),
        ),
        saving,
        union(start[for_causes], start[for_causes] + dur[for_causes]),
        whole
        + (
            f"{duration(passing)} while ranks load kernels, record or begin to record, not counted; "
            if passing
            else ""
        )
        + (note if note == NOBODY else f"most for rank {worst} ({share:.0%}){note and '; '}{note}"),
        confidence,
    )


class Stretches(Struct, frozen=True):
    """From the end of one collective to the arrival at the next, of all ranks, by rank and time."""

    arrival: Int  # node at its end
    rank: Int  # index of the trace
    begin: Int  # ns by the common clock
    dur: Int  # ns; 0 or less where collectives overlap
    # median ns of the other ranks' stretches before the same collective, at most its own duration; that where
    # the ranks come from different collectives, or one of them has not left its last
    others_ns: Float


@scenario("median_pace", argument="=RANK")
def median_pace(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """Between two collectives no rank, or not RANK, takes longer than the median of the others.

    Assumes:
        Kernels, host time and delays shrink alike. Extra work of a rank disappears instead of moving to the
        others, as it does in `balanced`.
    """
    graph = context.graph
    ranks = [rank.number for rank in graph.ranks]
    if argument and argument not in map(str, ranks):
        raise TracelensError(f"scenario median_pace={argument}: no such rank in the run")
    stretches = _stretches(context)
    late = stretches.others_ns < stretches.dur
    if argument:
        late &= stretches.rank == ranks.index(int(argument))
    if not late.any():
        raise NotApplicable("no rank is later than the others at a collective recorded on several ranks")
    factor = np.where(late, stretches.others_ns / np.maximum(stretches.dur, 1), 1.0)
    # Nodes take the factor of the stretch that they are in, calls that of the work that they launch.
    factor_of = np.ones(len(graph))
    for rank in unique(stretches.rank[factor < 1]).tolist():
        own = np.flatnonzero(stretches.rank == rank)
        busy = graph.nodes(rank, Node.WORK, Node.ARRIVE)
        row = np.searchsorted(graph.start[stretches.arrival[own]], graph.start[busy])
        busy, stretch = busy[row < len(own)], own[row[row < len(own)]]
        inside = graph.start[busy] >= stretches.begin[stretch]
        factor_of[busy[inside]] = factor[stretch[inside]]
        of_calls(graph, rank, factor_of)
    scale_pace(graph, edit, factor_of)
    late_ns = np.where(late, stretches.dur - stretches.others_ns, 0)
    excess_ns = np.bincount(stretches.rank, late_ns, len(ranks))
    worst = int(excess_ns.argmax())
    return (
        f"{int(late.sum()):,} stretches between two collectives take as long as the median of the other "
        f"ranks, {duration(excess_ns.sum())} less over all ranks, {duration(excess_ns[worst])} on rank "
        f"{ranks[worst]}: kernels, host time and delays in them shrink alike, random ones as well; extra "
        "work of a rank disappears instead of moving to the others (see balanced)"
    )


def _stretches(context: ScenarioContext) -> Stretches:
    """The stretches of all ranks; sends and receives are the pipeline's own pace and do not count."""
    graph, (meetings, collectives) = context.graph, context.meetings()
    names = [collective.collective for collective in collectives]
    sizes = [collective.participants[0].record.size for collective in collectives]
    kinds = {kind: code for code, kind in enumerate(dict.fromkeys(zip(names, sizes, strict=True)))}
    kind_of = np.full(len(graph), -1, dtype=np.int64)
    kind_of[meetings] = [
        kinds[kind] if kind[0] != SEND_RECV else -1 for kind in zip(names, sizes, strict=True)
    ]
    edge = np.flatnonzero((graph.edge == Edge.ARRIVAL) & (kind_of[graph.dst] >= 0))
    edge = edge[np.lexsort((graph.start[graph.src[edge]], graph.rank[graph.src[edge]]))]
    arrival, meeting = graph.src[edge], graph.dst[edge]
    rank, kind = graph.rank[arrival], kind_of[meeting]
    # The end of each arrival's kernel; it may serve several collectives.
    leave = np.flatnonzero(graph.kind == Node.LEAVE)
    both = np.concatenate((leave, arrival))
    kernel = graph.rank[both] * (int(graph.work.max(initial=0)) + 1) + graph.work[both]
    _, own = np.unique(kernel, return_inverse=True)
    end_of = np.zeros(int(own.max(initial=-1)) + 1, dtype=np.int64)
    np.maximum.at(end_of, own[: len(leave)], graph.end[leave])
    end = end_of[own[len(leave) :]]
    first = np.concatenate(([True], rank[1:] != rank[:-1])) if len(rank) else np.zeros(0, dtype=bool)
    before = np.where(first, -1, np.roll(kind, 1))
    begin = graph.start[arrival].copy()
    for index in unique(rank).tolist():
        rows = np.flatnonzero(rank == index)
        begin[rows[1:]] = np.maximum.accumulate(end[rows])[:-1]
    dur = graph.start[arrival] - begin
    # The median of the others, of collectives with as many ranks at once.
    others_ns = dur.astype(float)
    group, (_,) = codes(meeting)
    count = np.bincount(group)
    lowest = np.full(len(count), np.iinfo(np.int64).max)
    highest = np.full(len(count), -1, dtype=np.int64)
    np.minimum.at(lowest, group, np.where(dur > 0, before, -1))
    np.maximum.at(highest, group, before)
    comparable = (lowest == highest) & (lowest >= 0)
    order = np.argsort(group, kind="stable")
    first_row = np.concatenate(([0], np.cumsum(count)[:-1]))
    for size in unique(count[count > 1]).tolist():
        same = np.flatnonzero((count == size) & comparable)
        rows = order[first_row[same][:, None] + np.arange(size)]
        dur_ns = dur[rows]
        for column in range(size):
            others_ns[rows[:, column]] = median(np.delete(dur_ns, column, axis=1).T)
    return Stretches(arrival, rank, begin, dur, np.minimum(others_ns, dur))

"""Communication: exposed, slow or needless collectives, GEMMs beside them, and ranks that come late."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tracelens.analysis.comm import SEND_RECV, HostKernels, collective_kinds, host_spans, regathers
from tracelens.analysis.fusable import exposed_pairs, pairs, speed_of_light
from tracelens.analysis.host import threads
from tracelens.analysis.moe import BACKWARD, COMBINE, DISPATCH, deduplicated_share, regions, token_messages
from tracelens.analysis.stragglers import NOISE, SIGNIFICANT, SMALL, TOO_FEW, UNTESTED
from tracelens.arrays import Bool, unique
from tracelens.findings.detectors.detector import (
    Confidence,
    Detection,
    Detections,
    Outcome,
    Quantity,
    RankContext,
    detector,
    in_steps,
    step_count,
)
from tracelens.findings.thresholds import BLAMED_SHARE, HIDDEN_SHARE, RESTART_NS, STEADY_SHARE
from tracelens.table import Result, Table, codes
from tracelens.trace import STACK_KINDS, WORK_KINDS, collectives, cut, difference, intersection, union
from tracelens.units import amount, duration

_ALL_TO_ALL, _GATHERS, _MESSAGES = ("all_to_all",), ("all_gather", "reduce_scatter"), ("send_recv",)
_EXCHANGE_MEASURES = {
    "exposed per step": "part of it without computation",
    "overlap efficiency": "hidden / all of it",
    "overlap efficiency, bound": "the same if all other computation overlapped it",
    "sent in forward dispatches per step": "input of the forward dispatches, where recorded",
    "share after de-duplication": "bytes left if each rank got a token once, with experts chosen at random",
}
_EXCHANGE_THRESHOLD = f"over {HIDDEN_SHARE:.1%} of the time is exposed"
_EXCHANGE_LIMITS = (
    "Includes waiting for late ranks, which no overlap removes; see the findings about stragglers."
)

# The function's own name, with or without namespaces, template arguments and parameters. The cached kinds
# (cached_notify_dispatch) know all sizes before.
_NOTIFY = re.compile(r"(?:^|[\s:])notify_dispatch(?:$|[<(])")
_DISPATCH = re.compile(r"(?:^|[\s:])dispatch(?:$|[<(])")

EXPLAINED = (
    "extra_work",
    "slow_kernels",
    "silent_host",
    "python_code",
    "stalled_host",
    "data_loading",
    "blocking_call",
    "garbage_collection",
    "collective_call",
    "late_launch",
)
"""Causes that can be removed on the late rank."""
PASSING = ("kernel_loading", "profiler")
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
    "exposed_all_to_all",
    evidence="overlap",
    scenario="all_to_all_hidden",
    title="Exposed all-to-all",
    fix="hiding the all-to-all",
    symptom=True,  # of ranks that come late: much of it is waiting for them
    measures={
        "all-to-all per step": "time with an all-to-all running, waiting included",
        **_EXCHANGE_MEASURES,
    },
    threshold=_EXCHANGE_THRESHOLD,
    limits=_EXCHANGE_LIMITS,
)
def exposed_all_to_all(context: RankContext) -> Outcome:
    """Exposed all-to-all: dispatch and combine of MoE layers, or others."""
    is_all_to_all = _all_to_all(context)
    if not is_all_to_all.any():
        return "no all-to-all, in MoE layers or elsewhere"
    return _exposed(context, is_all_to_all, "all-to-all")


@detector(
    "exposed_token_gather",
    evidence="overlap",
    title="Exposed all-gather and reduce-scatter of tokens",
    fix="hiding the exchange of tokens",
    symptom=True,
    measures={
        "all-gather and reduce-scatter per step": "time with one of them running, waiting included",
        **_EXCHANGE_MEASURES,
    },
    threshold=_EXCHANGE_THRESHOLD,
    limits=_EXCHANGE_LIMITS,
)
def exposed_token_gather(context: RankContext) -> Outcome:
    """Exposed dispatch by all-gather and combine by reduce-scatter in MoE layers without an all-to-all."""
    if _all_to_all(context).any():
        return "tokens are dispatched by all-to-all"
    gathers = _exchanges(context) & _is(context, _GATHERS)
    if not gathers.any():
        return "no dispatch by all-gather, no combine by reduce-scatter"
    return _exposed(context, gathers, "all-gather and reduce-scatter")


def _exposed(context: RankContext, exchange: Bool, name: str) -> Outcome:
    """What of the exchange of tokens no computation hides."""
    exchanging, computing = context.during(exchange), context.work.union("computation")
    exposed = difference(exchanging, computing)
    if exposed.total <= HIDDEN_SHARE * exchanging.total:
        return f"the {name} is hidden under computation"
    hidden = intersection(exchanging, computing).total
    # Computation that hides something already cannot hide more, and cannot hide more than its own time.
    free = computing.total - hidden
    most = min(exposed.total, free)
    bound = (hidden + most) / exchanging.total
    quantities = [
        Quantity(f"{name} per step", context.per_step(exchanging.total), "ns"),
        Quantity("exposed per step", context.per_step(exposed.total), "ns"),
        Quantity("overlap efficiency", hidden / exchanging.total, "fraction"),
        Quantity("overlap efficiency, bound", bound, "fraction"),
    ]
    details = ""
    # Bytes that go into the dispatches of forward passes.
    layers = context.trace.once(regions)
    rows, work = context.trace.once(token_messages)
    inside = np.isin(work, context.rows) & (layers.stage[work] == DISPATCH) & (layers.phase[work] != BACKWARD)
    size = context.trace.tables["collectives"].array("in_bytes")[rows[inside]]
    if sent := int(size[size > 0].sum()):
        quantities.append(Quantity("sent in forward dispatches per step", context.per_step(sent), "bytes"))
        details = f"; forward dispatches send {amount(context.per_step(sent), 'bytes')}/step"
    if (share := deduplicated_share(context.trace)) < 1:
        quantities.append(Quantity("share after de-duplication", share, "fraction"))
        details += f"; de-duplication would cut it to {share:.0%}"
    return Detection(
        tuple(quantities),
        context.per_step(most),
        exposed,
        f"{context.per_step(exposed.total) / 1e6:,.1f} of {context.per_step(exchanging.total) / 1e6:,.1f} "
        f"ms/step of {name} (including waiting) is exposed: {hidden / exchanging.total:.0%} hidden, "
        f"{bound:.0%} possible{details}",
        "low",
    )


def _exchanges(context: RankContext) -> Bool:
    """Which work is communication in the dispatch or combine of MoE layers."""
    layers, work = context.trace.once(regions), context.work
    inside: Bool = (work.kind == WORK_KINDS.index("comm")) & np.isin(
        layers.stage[context.rows], (DISPATCH, COMBINE)
    )
    return inside


def _is(context: RankContext, names: tuple[str, ...]) -> Bool:
    """Which work is one of these collectives."""
    codes = [collectives().index(name) for name in names]
    result: Bool = np.isin(context.trace.once(collective_kinds)[context.rows], codes)
    return result


def _all_to_all(context: RankContext) -> Bool:
    """Which work is all-to-all by its record or name.

    In dispatch and combine also sends and receives, and what neither record nor name tells.
    """
    untold = context.trace.once(collective_kinds)[context.rows] < 0
    result: Bool = _is(context, _ALL_TO_ALL) | (_exchanges(context) & (untold | _is(context, _MESSAGES)))
    return result


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
)
def deepep_busy_wait(context: RankContext) -> Outcome:
    """The host spins until DeepEP's `notify_dispatch` ends, and only then launches `dispatch`."""
    work, events, thread = context.work, context.trace.arrays, threads(context.trace)
    used = unique(work.name[work.is_kernel]).tolist()
    first = [code for code in used if _NOTIFY.search(work.names[code])]
    second = [code for code in used if _DISPATCH.search(work.names[code])]
    if not first:
        return "no DeepEP kernel notify_dispatch"
    # Each notify_dispatch with the dispatch that follows it on the same thread.
    rows = np.flatnonzero(work.is_kernel & np.isin(work.name, first + second) & (work.launch >= 0))
    launch = work.launch[rows]
    order = np.lexsort((events.start[launch], thread[launch]))
    rows, launch = rows[order], launch[order]
    notifies = np.isin(work.name[rows], first)
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


@detector(
    "hierarchical_all_reduce",
    evidence="collectives",
    scenario="hierarchical_all_reduce",
    title="Collectives across hosts use one flat ring",
    fix="a hierarchical all-reduce",
    needs=("collectives",),
    measures={
        "collectives per step": "those in flat rings over hosts",
        "bus bandwidth": "of their transfers, without waiting",
        "bytes sent per host, flat ring": "bytes that cross hosts, per step",
        "bytes sent per host, hierarchical": "the same with a reduction within each host first",
        "time without waiting": "of their transfers, per step",
        "expected time, hierarchical": "the same with a reduction within each host first",
        "hosts": "most hosts of one collective",
    },
    threshold="equal numbers of ranks on several hosts, more than one each, in a kernel not named a tree",
    limits="Needs traces that name their hosts.",
)
def hierarchical_all_reduce(results: Mapping[str, Result]) -> Detections:
    """All-reduce, reduce-scatter or all-gather over hosts with several ranks each, as one flat ring."""
    participants = results["collectives"].data["participants"]
    if not len(participants):
        return "no collective is recorded on several ranks"
    hosts = set(participants.texts("host"))
    if "" in hosts or len(hosts) == 1:
        return "the traces do not name their hosts" if "" in hosts else "all ranks are on one host"
    group = np.unique(np.array(participants.texts("group")), return_inverse=True)[1]
    names, name = np.unique(np.array(participants.texts("collective")), return_inverse=True)
    first, order = participants.array("first_rank"), participants.array("order")
    of_row, keys = codes(group.ravel(), first, name.ravel(), order)
    parts = HostKernels(
        number=of_row,
        host=participants.texts("host"),
        kernel=participants.texts("kernel"),
        bytes=participants.array("bytes"),
        dur=participants.array("dur_ns"),
        size=participants.array("group_size"),
    )
    spans = host_spans(parts, [names[code] for code in keys[2].tolist()])
    if reason := spans.reason():
        return reason
    flat = spans.divisible & spans.flat
    expected_ns, inside_known = spans.expected()
    # Share of its time that each collective saves.
    gain = spans.gain()
    steps = step_count(results)
    counted = in_steps(participants) & (spans.hosts[of_row] > 0) & flat[of_row]
    confidence: Confidence = "medium" if inside_known and spans.ring[flat].all() else "low"
    detections = {}
    for rank in unique(participants.array("rank")[counted]).tolist():
        rows = np.flatnonzero(counted & (participants.array("rank") == rank))
        exposed, wait, start, dur = (
            participants.array(column)[rows] for column in ("exposed_ns", "wait_ns", "local_ts_ns", "dur_ns")
        )
        index = of_row[rows]
        n, across, latency = spans.ranks[index], spans.hosts[index], spans.latency[index]
        sent = spans.rounds[index] * spans.bytes[index]
        ring, levels = float((sent * (n - 1) / n).sum()), float((sent * (across - 1) / across).sum())
        rate = float(sent.dot((n - 1) / n) / max(int(latency.sum()), 1)) * 1e9
        lost = (exposed > 0) & (gain[index] > 0)
        expected = float(expected_ns[index].sum()) / steps
        detections[rank] = Detection(
            (
                Quantity("collectives per step", len(rows) / steps, "count"),
                Quantity("bus bandwidth", rate, "bytes/s"),
                Quantity("bytes sent per host, flat ring", ring / steps, "bytes"),
                Quantity("bytes sent per host, hierarchical", levels / steps, "bytes"),
                Quantity("time without waiting", float(latency.sum()) / steps, "ns"),
                Quantity("expected time, hierarchical", expected, "ns"),
                Quantity("hosts", float(across.max()), "count"),
            ),
            float((gain[index] * exposed).sum()) / steps,
            union((start + wait)[lost], (start + dur)[lost]),
            f"{len(rows) / steps:,.0f} collectives per step across {across.max()} hosts with "
            f"{(n // across).max()} ranks each spend {duration(latency.sum() / steps)} transferring, at "
            f"{rate / 1e9:,.2f} GB/s; a hierarchical algorithm sends {levels / max(ring, 1):.0%} of the "
            f"bytes per host: {duration(expected)} expected",
            confidence,
        )
    return detections or "no such collective lies in a step"


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
    of_late_rank = _late_rank_significance(results["stragglers"])
    if significance is not None:
        for_causes &= np.isin(of_late_rank, significance)
        if not for_causes.any():
            named = SIGNIFICANT in significance
            return NOBODY if named else "all waiting is for significant stragglers"
    note, scenario, dur = "", None, lost.array("dur_ns")
    if significance is not None and SIGNIFICANT not in significance:
        # No rank is later than the others, if that is what ranks wait for. A rank that has more to do is
        # later for a reason that a steady pace does not remove.
        note = NOBODY
        random_ns = dur[for_causes & ~cause.equals("extra_work")].sum()
        scenario = "median_pace" if random_ns >= STEADY_SHARE * dur[counted].sum() else ""
    elif significance is not None:
        if not (for_causes & (of_late_rank == SIGNIFICANT)).any():
            confidence, note = "low", "too few steps to tell this from noise"
        # The late ranks take no longer than the others; their own causes only.
        scenario = ""
        if cause.mask(EXPLAINED.__contains__)[for_causes].all():
            late, index = np.unique(lost.array("late_rank")[for_causes], return_inverse=True)
            blamed_ns = np.bincount(index, weights=dur[for_causes])
            worst = np.flatnonzero(blamed_ns >= BLAMED_SHARE * blamed_ns.sum())
            by_blame = late[worst[np.argsort(-blamed_ns[worst])]].tolist()
            scenario = "+".join(f"median_pace={rank}" for rank in by_blame)
    named = note != NOBODY and causes != UNEXPLAINED
    title, fix, main_cause = _blamed(lost, for_causes, scenario or "") if named else ("", "", "")
    steps = step_count(results)
    return {
        rank: _waiting_of_rank(lost, rank, counted, for_causes, causes, steps, confidence, note)._replace(
            scenario=scenario, title=title, fix=fix, cause=main_cause
        )
        for rank in unique(lost.array("rank")[for_causes]).tolist()
    }


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


def _late_rank_significance(stragglers: Result) -> NDArray[np.str_]:
    """How significant the late rank is for the cause, by row of `lost`."""
    lost, table = stragglers.data["lost"], stragglers.data["causes"]
    pairs = zip(table.array("rank").tolist(), table.texts("cause"), strict=True)
    of_pair = dict(zip(pairs, table.texts("significance"), strict=True))
    # What a rank has from before is as significant as what else it is late for.
    ranks = stragglers.data["stragglers"]
    of_rank = dict(zip(ranks.array("rank").tolist(), ranks.texts("significance"), strict=True))
    of_pair = {pair: of_rank[pair[0]] if text == UNTESTED else text for pair, text in of_pair.items()}
    waits = zip(lost.array("late_rank").tolist(), lost.texts("cause"), strict=True)
    return np.array([of_pair.get(pair, UNTESTED) for pair in waits], dtype=np.str_)


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
        f"{duration(total)} per step of exposed waiting in collectives, including {listed}; "
        + (f"{duration(passing)} while ranks load kernels or record, not counted; " if passing else "")
        + (note if note == NOBODY else f"most for rank {worst} ({share:.0%}){note and '; '}{note}"),
        confidence,
    )


@detector(
    "gemm_collective",
    evidence="overlap",
    scenario="gemm_collective_overlap",
    title="GEMMs do not overlap their collectives",
    fix="overlapping GEMMs with their collectives",
    measures={
        "pairs per step": "GEMMs that run sequentially with their collective",
        "serialized time": "their GEMMs and exposed transfers, per step",
        "with perfect overlap": "the longer one of each pair, per step",
        "speed of light": "bound for GEMM and transfer together, per step; known devices only",
        "speed of light / time": "the same / serialized time",
    },
    threshold="the GEMM and its collective run in sequence, and no computation hides half of the transfer",
    limits="Assumes that both run at full speed at the same time.",
)
def gemm_collective(context: RankContext) -> Outcome:
    """A GEMM and the collective of its tensor run sequentially (GEMM + reduction, gather + GEMM)."""
    gemm_pairs = pairs(context)
    if isinstance(gemm_pairs, str):
        return gemm_pairs
    start, end = context.work.start[gemm_pairs.row], context.work.end[gemm_pairs.row]
    dur = end - start
    computation = context.work.union("computation")
    exposed, slow = exposed_pairs(context, gemm_pairs)
    count = int(slow.sum())
    if not count:
        return f"the collectives of all {len(slow)} tensor-parallel GEMMs are overlapped"
    light = speed_of_light(gemm_pairs, context.device)
    now = (gemm_pairs.gemm_ns + exposed)[slow]
    # At best the shorter of the two hides in the longer one, and both are bound by the device.
    best = np.maximum(np.maximum(gemm_pairs.gemm_ns, dur), light)[slow]
    saving = context.per_step(float(np.maximum(now - best, 0).sum()))
    measured, limit_ns = context.per_step(float(now.sum())), context.per_step(float(light[slow].sum()))
    kinds = ", ".join(
        f"{int(number)} {kind}"
        for kind, number in zip(
            gemm_pairs.kinds, np.bincount(gemm_pairs.kind[slow], minlength=len(gemm_pairs.kinds)), strict=True
        )
        if number
    )
    limit, bound = "", tuple[Quantity, ...]()
    if context.device:
        limit = f", {duration(limit_ns)} at the speed of light of {context.device.title}"
        share = Quantity("speed of light / time", limit_ns / max(measured, 1), "ratio")
        bound = (Quantity("speed of light", limit_ns, "ns"), share)
    return Detection(
        (
            Quantity("pairs per step", context.per_step(count), "count"),
            Quantity("serialized time", measured, "ns"),
            Quantity("with perfect overlap", context.per_step(float(best.sum())), "ns"),
            *bound,
        ),
        saving,
        difference(union(start[slow], end[slow]), computation),
        f"{count} of {len(slow)} GEMMs do not overlap the collective of their tensor ({kinds}): "
        f"{duration(measured)} per step{limit}; overlapped, only the longer of each pair counts",
        "medium" if context.device else "low",
    )


@detector(
    "parameters_regathered",
    evidence="overlap",
    scenario="keep_parameters",
    title="Parameters are gathered again for the backward pass",
    fix="keeping parameters gathered",
    remedy="Keep parameters gathered between the passes where memory allows: fully_shard(module, "
    "reshard_after_forward=False), for some modules if not for all; for the last one in any case. FSDP1: "
    "ShardingStrategy.SHARD_GRAD_OP.",
    measures={
        "gathers again per step": "all-gathers of modules gathered before in the step, waiting included",
        "exposed per step": "part of it without computation",
    },
    threshold="one module gathered twice in a step",
    limits="Reads the marks of FSDP2. The parameters of all modules must fit into memory together.",
)
def parameters_regathered(context: RankContext) -> Outcome:
    """FSDP frees the parameters of a module after its forward pass and gathers them again."""
    again = np.isin(context.rows, context.trace.once(regathers).rows)
    gathers = again & (context.work.kind == WORK_KINDS.index("comm"))
    if not gathers.any():
        return "no module whose parameters are gathered twice in a step by FSDP2"
    gathering = context.during(gathers)
    exposed = difference(gathering, context.work.union("computation"))
    return Detection(
        (
            Quantity("gathers again per step", context.per_step(gathering.total), "ns"),
            Quantity("exposed per step", context.per_step(exposed.total), "ns"),
        ),
        context.per_step(exposed.total),
        gathering,
        f"{context.per_step(gathering.total) / 1e6:,.1f} ms/step of all-gathers repeat those of the forward "
        f"pass; {context.per_step(exposed.total) / 1e6:,.1f} ms/step of them are exposed",
        "medium",
    )

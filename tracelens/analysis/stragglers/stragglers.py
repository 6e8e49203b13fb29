"""Which ranks arrive last at collectives, what that costs, why, and which are significant stragglers.

Without a fault some rank is late, too, and for long: a host that is slow for 50 ms is last at ten
collectives. So collectives are no independent draws, and two tests that know runs stand in for counting
them. Both test what a rank lost anew (see `delays_of`), each kind of delay apart: a host that sleeps 8 ms in
each step does not stand out from hosts that launch with 10 ms of jitter, but it does where no other sleeps.

Recurrence (2 to 4 steps). What is wrong with a rank comes back at the same places of each step; noise falls
anywhere. Under the null hypothesis the series of delays of each rank and step might as well be that of
another rank, begun at another collective: exchangeable, and circularly shifted so that runs stay whole. The
p-value is the share of such draws, one for each step, that recur as much; times the ranks, for any of them
(Bonferroni). Two steps of R ranks with P collectives each reach 1 / (R P) at best: with two ranks they cannot
tell. A rank whose better steps are no worse than another's worse ones is not tested: it does not stand out.

Steps (3 and more). The mean over steps of what a rank lost more than the others, against what equal devices
lose, over its standard error: Student's t. Steps may be correlated, so the variance is that of a first-order
autoregression with correlation 1/2: (1 + r) / (1 - r) = 3 times as large. With 3 or 4 steps, either test
will do; recurrence has a fifth of the level.

The level of 1% is divided among kinds of delays by 1 / (number of delays): what is rare has less opportunity
to look like a fault. These weights do not look at which rank or step a delay is of, so the level holds.

Size (2 steps and more). A pause, a slow GPU or more work that takes 10% of a step in each step, at the same
places and beyond the most that another rank loses there, is no noise of recordings without a fault (see
`RECURS`). Late launches may be: hosts differ from run to run. A host that stalls does so anywhere in a step:
a scheduler takes its core when the slice is over.

With more than three steps the first is left out: what a rank lost there it may have lost before the recording
began. With more than three left, the interval of the effect must not include zero; of work it may, since its
amount changes from step to step.

Sources: circular shifts against autocorrelation: Harris, Nonsense correlations in neuroscience (2020); blocks
of dependent series: Kunsch, Ann. Stat. 17 (1989); variance of the mean of correlated steps: Bayley and
Hammersley, J. R. Stat. Soc. Suppl. 8 (1946); weighted p-values: Genovese, Roeder and Wasserman, Biometrika 93
(2006); as many draws as are needed: Besag and Clifford, Biometrika 78 (1991).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan, nan
from typing import Any, NamedTuple

import numpy as np

from tracelens.analysis.analyzer import analyzer
from tracelens.analysis.comm import NO_COMMUNICATION, SEND_RECV, AlignedRun, MatchedCollective, waits_caused
from tracelens.analysis.stragglers.causes import (
    CAUSES,
    IDLE,
    Comparison,
    Delays,
    EqualCalls,
    StragglerVerdict,
)
from tracelens.analysis.stragglers.segments import (
    BLOCKED,
    COLLECTIVE,
    COMM,
    GARBAGE,
    LATE,
    LOADING,
    LOADING_CODE,
    OTHER,
    PROFILER,
    PYTHON,
    SILENT,
    STALLED,
    TIMES,
    WORK,
    Segments,
    median_of_others,
    segments,
    weighted_quantile,
)
from tracelens.analysis.stragglers.thresholds import (
    ALIKE,
    ALPHA,
    AT_ONCE,
    CONFIDENCE,
    CORRELATED,
    EQUAL_SLOWER,
    EXPLAINED,
    FEW_STEPS,
    MEAN_FACTOR,
    MOST_RANKS,
    MOST_STEPS,
    OFTEN,
    RECURRENCE_FACTOR,
    RECURS,
    SMALL_NS,
    TINY,
)
from tracelens.arrays import Float, median
from tracelens.table import RANK, STEP, Column, Result, Schema, Skip, result, t_quantile, t_tail
from tracelens.trace import Scope, cut, difference, exclusive, union

SHOWN = 20  # longest waits
_LONGEST_NS = 1 << 62
WHY = {
    "token_load": "more rows of tokens in the same ops",
    "extra_work": "more or different work than the others: more calls, other ops or shapes",
    "slow_kernels": "same calls and shapes, but slower on its GPU",
    "silent_host": "GPU idle: the host was in no recorded op, call or Python frame (the program's own "
    "Python, unrecorded garbage collection, logging, checkpoints, or a process that slept or had no core)",
    "python_code": "GPU idle: the host was in Python frames, in no op or call",
    "data_loading": "GPU idle: the host was fetching the next batch",
    "kernel_loading": "GPU idle: the host was loading or compiling kernels, mostly once in a process",
    "blocking_call": "GPU idle: the host was in a call that waits or copies synchronously",
    "garbage_collection": "GPU idle: Python collected garbage",
    "collective_call": "GPU idle: the host was inside a collective call",
    "profiler": "GPU idle: the profiler held the host up",
    "stalled_host": "GPU idle: the host stood still inside an op, which took 10 times as long as its like "
    "(another process had the core, or the op waited for a lock, a page or other threads)",
    "late_launch": "GPU idle: the host was late, in ops, calls and the Python between them",
    "recording_began": "its recording began later than the others': what it did before is not in the trace",
    "inherited": "already late when it left a collective of another group",
    "unknown": f"nothing in the trace explains {EXPLAINED:.0%} of the lateness, or the others waited less "
    f"than {SMALL_NS // 1000} µs in total",
}
_KIND = {cause: kind for kind, cause in IDLE.items()} | {
    "token_load": WORK,
    "extra_work": WORK,
    "slow_kernels": WORK,
    "unknown": OTHER,
}
_DOC = "; ".join(f"{cause}: {WHY[cause]}" for cause in CAUSES)

SIGNIFICANT, NOISE, TOO_FEW, SMALL, ONCE = "significant", "noise", "too few steps", "small", "once"
_ONCE = (LOADING_CODE, PROFILER)
"""Kinds of delay that no rank has more of than another for a reason, and that end with the first steps."""
_JUDGED_BY_TESTS = (LATE, OTHER)
"""Kinds that recur without a fault, where hosts differ: size alone tells nothing of them."""
_RECURS_ANYWHERE = (SILENT, PYTHON, LOADING, GARBAGE, BLOCKED, STALLED)
"""Kinds that also recur at other places in each step: a scheduler takes a core when its slice is over, and
Python collects garbage when enough objects are there."""
_STANDS_STILL = (SILENT, PYTHON, COLLECTIVE, STALLED)
"""What a host shows that does not get its core: it depends on where in the program it is then."""
UNTESTED = "not tested"

_NO_INTERVAL = np.iinfo(np.int64).min  # a loss of time can be negative: no smaller number is left
_EFFECT = (
    Column(
        "excess_ns",
        "int64",
        "ns",
        "lost to this cause per step, beyond the median of the others; below 0: less than they",
    ),
    Column(
        "excess_low_ns",
        "int64",
        "ns",
        f"lower end of the {CONFIDENCE:.0%} confidence interval; missing (upper end too) with one step",
        absent=_NO_INTERVAL,
    ),
    Column("excess_high_ns", "int64", "ns", "upper end of the interval", absent=_NO_INTERVAL),
    Column(
        "p_value",
        "float64",
        doc="p-value: upper bound of the probability that any rank loses as much without a fault; missing if "
        f"it loses less than {ALIKE:.0%} of a step, or if the cause is not tested",
        absent=-1,
    ),
    Column(
        "significance",
        "str",
        doc=f"{SIGNIFICANT}: p-value below {ALPHA:.0%}, {RECURS:.0%} of a step lost at the same places of "
        "all steps (but for late launches; a stalled host: anywhere in them), or a GPU that takes "
        f"{EQUAL_SLOWER:g} times as long for calls "
        f"with equal arguments in three quarters of its time in them; {NOISE}: not; {TOO_FEW}: too "
        f"few to tell from noise; {ONCE}: kernels are loaded once in a process, the profiler is there while "
        f"it records; {SMALL}: the rank loses less than {ALIKE:.0%} of a step to it; "
        f"{UNTESTED}: lateness from before",
    ),
)
STRAGGLERS = Schema(
    "Late ranks",
    (
        RANK,
        Column("others_wait_ns", "int64", "ns", "waiting of all other ranks for it"),
        Column(
            "last_arrivals", "int64", "count", "collectives at which it was last, or held up the last rank"
        ),
        Column(
            "cause",
            "str",
            doc="significant cause of most of that waiting; if none is significant, the largest",
        ),
        Column("evidence", "str", doc="evidence for that cause, at the longest wait", prose=True),
        Column("fraction_of_others_wait", "float64", "fraction", "share of the waiting this rank causes"),
        Column("fraction_of_all_wait", "float64", "fraction", "share of the waiting that all ranks cause"),
        Column(
            "fraction_of_recorded_time",
            "float64",
            "fraction",
            "mean waiting of another rank for it / recorded time",
        ),
        *_EFFECT,
        Column("significant", "bool", doc="is the rank a significant straggler for that cause?"),
    ),
    doc="Worst first. A rank's work since its previous collective is compared with the median of the other "
    f"ranks, weighted by their waiting. {_DOC}.",
    key=(),
    leading="others_wait_ns",
    descending=True,
)
CAUSE_TABLE = Schema(
    "Causes of waiting",
    (
        Column("rank", "int64", doc="rank that was last, or held up the last rank"),
        Column("cause", "str", doc=_DOC),
        Column("others_wait_ns", "int64", "ns", "waiting of all other ranks"),
        Column("count", "int64", "count", "collectives"),
        Column("fraction_of_all_wait", "float64", "fraction", "share of the waiting that all ranks cause"),
        Column("evidence", "str", doc="at the longest wait", prose=True),
        *_EFFECT,
    ),
    key=(),
)
WORST = Schema(
    "Longest waits",
    (
        Column("collective", "category", doc="collective in which they wait"),
        Column("group", "category", doc="process group"),
        Column("order", "int64", "count", "position among the collectives of the group"),
        Column("last_rank", "int64", doc="last to arrive"),
        Column("wait_ns", "int64", "ns", "waiting of all other ranks"),
        Column("cause", "str", doc="why the last rank is late, as in `causes`"),
        Column("evidence", "str", doc="figures behind the cause", prose=True),
        Column("late_ns", "int64", "ns", "arrival after the median of the others, weighted by their waiting"),
    ),
)
LOST = Schema(
    "Exposed waiting for late ranks",
    (
        Column("rank", "int64", doc="waiting rank"),
        Column("late_rank", "int64", doc="rank that it waits for"),
        Column("cause", "category", doc="why that rank is late, as in `causes`"),
        Column("collective", "category", doc="collective in which it waits"),
        STEP,
        Column("local_ts_ns", "int64", "ns", "by the clock of the rank's own trace"),
        Column("dur_ns", "int64", "ns", "length of the piece"),
    ),
    doc="Pieces on one rank do not overlap. Waiting hidden by computation or transfers is left out.",
    detail=True,
    key=(),
)
EQUAL = Schema(
    "Equal calls on other ranks",
    (
        RANK,
        Column("gpu_calls", "int64", "count", "calls that another rank makes with the same arguments"),
        Column(
            "gpu_ratio",
            "float64",
            "ratio",
            "GPU time of these against the median of the other ranks, reached by three quarters of the time; "
            "missing: no such call",
            absent=-1,
        ),
        Column("host_ops", "int64", "count", "names of ops that call no others and wait for nothing"),
        Column(
            "host_ratio",
            "float64",
            "ratio",
            "host time of a call of these, likewise; median, by their time; missing: no such op",
            absent=-1,
        ),
    ),
    doc="A GPU is slow from a ratio of 1.1 on. Hosts of equal ranks differ by up to half from recording to "
    "recording: their ratio says how it was in this one.",
)
TABLES = {"stragglers": STRAGGLERS, "causes": CAUSE_TABLE, "worst": WORST, "lost": LOST, "equal": EQUAL}
_Case = tuple[MatchedCollective, int, StragglerVerdict]

# Random draws: as many at most, until so many recur as much; how many at first; cells of one batch of them.
_DRAWS, _ENOUGH, _FIRST, _CELLS = 40_000, 100, 1000, 4_000_000
_SEED = 23


class Effect(NamedTuple):
    """What one rank loses by one kind of delay, and whether chance explains it."""

    ns: float  # mean of a step, beyond the median of the other ranks
    low: float  # lower end of its confidence interval; NaN as the upper end where one step shows none
    high: float  # upper end
    p_value: float  # of the test, for any rank and kind; -1 where it is too small to matter
    verdict: str  # SIGNIFICANT, NOISE, TOO_FEW (steps to tell) or SMALL


@analyzer(
    "stragglers",
    title="Stragglers",
    order=84,
    part=segments,
    shared=("aligned run",),
    tables=TABLES,
    sums_steps=True,
)
def stragglers(parts: Sequence[Segments], aligned: AlignedRun, *, scope: Scope = "all") -> Result:
    """Which ranks arrive last at collectives, how long do the others wait, and why?

    A late arrival is explained by what the last rank did since its previous collective that the others did
    not: more or slower computation, or an idle GPU, and what its host was doing.

    Reading:
        Begin with rows that are `significant`: `excess_ns` is what the cause takes per step, with its
        confidence interval. `worst` leads to the longest waits.

    Limits:
        Needs the traces of several ranks, and more than a few steps to tell a straggler from noise. A cause
        that leaves no event in the trace is `unknown`.

    Args:
        parts: from `segments`.
        aligned: the run.
        scope: "all", or "linked" for work whose launch call is in the trace.

    Returns:
        tables `stragglers` (one row a rank that was waited for, and whether beyond noise), `causes` (by rank
        and cause), `worst` (the collectives with most waiting), `lost` (when a rank only waits, by cause) and
        `equal` (how long each rank's GPU and host take for equal calls).
    """
    collectives = aligned.collectives
    comparison = Comparison({part.rank: part for part in parts}, aligned)
    verdicts = comparison.verdicts()
    waits = waits_caused(collectives)
    cases = list(zip(collectives, waits, verdicts, strict=True))
    step_ns = float(median([part.step_ns for part in parts if len(part.edges)] or [0]))
    slow = {part.rank: equal for part in parts if (equal := comparison.equal_calls(part.rank)).is_slow}
    causes = _by_cause(cases, effects(comparison.recorder.delays(), step_ns), step_ns, slow)
    # Waiting that each rank caused in collectives; a receive waits for its sender in every schedule.
    tested_waits: dict[int, int] = {}
    for collective, wait, verdict in cases:
        counted = wait if collective.collective != SEND_RECV else 0
        tested_waits[verdict.rank] = tested_waits.get(verdict.rank, 0) + counted
    # Recorded time of the other ranks together, as seen by one.
    spans = [int(part.edges[-1] - part.edges[0]) for part in parts if len(part.edges)]
    recorded_ns = max(float(median(spans)) if spans else 0.0, 1.0) * max(len(spans) - 1, 1)
    causes_of: dict[int, list[dict[str, Any]]] = {}
    for row in causes:
        causes_of.setdefault(row["rank"], []).append(row)
    late_ranks: list[dict[str, Any]] = []
    for rank, of_rank in causes_of.items():
        wait = sum(row["others_wait_ns"] for row in of_rank)
        main = next((row for row in of_rank if row["significance"] == SIGNIFICANT), of_rank[0])
        late_ranks.append(
            {
                **main,
                "others_wait_ns": wait,
                "last_arrivals": sum(row["count"] for row in of_rank),
                "fraction_of_others_wait": main["others_wait_ns"] / max(wait, 1),
                "fraction_of_all_wait": min(sum(row["fraction_of_all_wait"] for row in of_rank), 1.0),
                # Collectives that overlap are waited for at the same time, but each counts.
                "fraction_of_recorded_time": min(tested_waits[rank] / recorded_ns, 1.0),
                "significant": main["significance"] == SIGNIFICANT,
            }
        )
    late_ranks.sort(key=lambda row: (-row["others_wait_ns"], row["rank"]))
    worst = [
        {
            "collective": collective.collective,
            "group": collective.group,
            "order": collective.order,
            "last_rank": collective.last.rank,
            "wait_ns": wait,
            "cause": verdict.cause,
            "evidence": verdict.evidence,
            "late_ns": verdict.late_ns,
        }
        for collective, wait, verdict in sorted(cases, key=lambda case: -case[1])[:SHOWN]
        if wait
    ]
    tables = {
        "stragglers": STRAGGLERS.from_rows(late_ranks),
        "causes": CAUSE_TABLE.from_rows(causes),
        "worst": WORST.from_rows(worst),
        "lost": LOST.concat(lost_rows(aligned, verdicts)),
        "equal": EQUAL.from_rows(equal_rows(parts, comparison)),
    }
    skips = [*aligned.skips]
    # Ranks that are in no table.
    met = {participant.rank for collective in collectives for participant in collective.participants}
    for rank_comm in aligned.ranks:
        if rank_comm.rank not in tested_waits:
            why = "none of its collectives is recorded on another rank"
            if not len(rank_comm.start):
                why = NO_COMMUNICATION
            elif rank_comm.rank in met:
                why = "no rank waited for it"
            skips.append(Skip(f"rank {rank_comm.rank}", why))
    if comparison.cut:
        reason = (
            f"the search for the cause covers only the last {AT_ONCE:,} communication kernels before each"
        )
        skips.append(Skip(f"earlier causes of {comparison.cut:,} late arrivals", reason))
    undecided = sorted({row["rank"] for row in causes if row["significance"] == TOO_FEW})
    if undecided:
        ranks = (
            f"ranks {', '.join(map(str, undecided))} stand"
            if undecided[1:]
            else f"rank {undecided[0]} stands"
        )
        reason = "too few steps of too few ranks are recorded; record more steps"
        skips.append(Skip(f"whether {ranks} out from noise", reason))
    return result(tables, skips, scope=scope)


def _by_cause(
    cases: Sequence[_Case],
    effect_of: Mapping[tuple[int, int], Effect],
    step_ns: float,
    slow: Mapping[int, EqualCalls],
) -> list[dict[str, Any]]:
    """Rows of CAUSE_TABLE, worst first; `slow` are the ranks whose GPU is slow at equal calls."""
    groups: dict[tuple[int, str], list[_Case]] = {}
    for case in cases:
        groups.setdefault((case[2].rank, case[2].cause), []).append(case)
    total = max(sum(wait for _, wait, _ in cases), 1)
    waits = {key: sum(wait for _, wait, _ in same_cause) for key, same_cause in groups.items()}
    rows = []
    for (rank, cause), same_cause in groups.items():
        wait = waits[rank, cause]
        collective, longest, verdict = max(same_cause, key=lambda case: case[1])
        located = f"{collective.collective} {collective.order} of {collective.group}"
        # Of causes that are one kind of delay, each has its share of the effect, by the waiting.
        kind = _KIND.get(cause)
        effect = effect_of.get((rank, -1 if kind is None else kind))
        if effect is None:
            effect = Effect(0, nan, nan, -1, UNTESTED if kind is None else SMALL)
        same_kind = sum(waits.get((rank, other), 0) for other, of_kind in _KIND.items() if of_kind == kind)
        share = wait / same_kind if same_kind else 1.0
        if kind is not None and effect.ns * share < ALIKE * step_ns:
            effect = effect._replace(p_value=-1, verdict=SMALL)
        elif cause == "slow_kernels" and rank in slow:
            # Equal calls tell what few or noisy steps cannot.
            effect = effect._replace(verdict=SIGNIFICANT)
        rows.append(
            {
                "rank": rank,
                "cause": cause,
                "others_wait_ns": wait,
                "count": len(same_cause),
                "fraction_of_all_wait": wait / total,
                "evidence": f"{verdict.evidence} (before {located})" if longest else "",
                "excess_ns": round(effect.ns * share),
                # The interval of damaged time stamps can be wider than 64 bits hold.
                **{
                    name: _NO_INTERVAL
                    if isnan(end)
                    else round(min(max(end * share, -_LONGEST_NS), _LONGEST_NS))
                    for name, end in (("excess_low_ns", effect.low), ("excess_high_ns", effect.high))
                },
                "p_value": effect.p_value,
                "significance": effect.verdict,
            }
        )
    return sorted(rows, key=lambda row: (-row["others_wait_ns"], row["rank"], row["cause"]))


def equal_rows(parts: Sequence[Segments], comparison: Comparison) -> list[dict[str, Any]]:
    """Rows of EQUAL, by rank; of ranks that share calls with another."""
    compared: dict[int, list[tuple[float, float]]] = {part.rank: [] for part in parts}
    ops: dict[str, list[tuple[int, int, int]]] = {}
    for part in parts:
        columns = part.host_ops.names, part.host_ops.median_ns.tolist(), part.host_ops.calls.tolist()
        for name, ns, count in zip(*columns, strict=True):
            if count >= OFTEN:
                ops.setdefault(name, []).append((part.rank, ns, count))
    for calls in ops.values():
        if len(calls) < 2:
            continue
        median_ns = np.array([ns for _, ns, _ in calls], dtype=float)
        theirs = median_of_others(median_ns[:, None])[:, 0]
        timeless = median_ns <= 0
        usable = timeless.sum() == timeless  # no other rank's call takes no time
        for (rank, ns, count), of_others, is_usable in zip(
            calls, theirs.tolist(), usable.tolist(), strict=True
        ):
            if is_usable:
                compared[rank].append((ns / of_others, ns * count))
    rows = []
    for rank, own in sorted(compared.items()):
        gpu = comparison.equal_calls(rank)
        if not own and not gpu.calls:
            continue
        ratio, weight = (np.array(column, dtype=float) for column in zip(*own or [(1.0, 1.0)], strict=True))
        rows.append(
            {
                "rank": rank,
                "gpu_calls": round(gpu.calls),
                "gpu_ratio": gpu.slower if gpu.calls else -1.0,
                "host_ops": len(own),
                "host_ratio": weighted_quantile(ratio, weight, 0.5),
            }
        )
    return rows


def lost_rows(aligned: AlignedRun, verdicts: Sequence[StragglerVerdict]) -> list[dict[str, Any]]:
    """Rows of LOST, by rank.

    Args:
        aligned: the run.
        verdicts: why the last rank of each collective was late.
    """
    ranks, collectives = aligned.ranks, aligned.collectives
    sync: dict[int, dict[int, int]] = {rank_comm.rank: {} for rank_comm in ranks}
    longest: dict[int, dict[int, tuple[int, int, str]]] = {rank_comm.rank: {} for rank_comm in ranks}
    for index, collective in enumerate(collectives):
        wait = collective.wait_ns
        for participant in collective.participants:
            rank, kernel, ns = participant.rank, participant.record.kernel, wait[participant.rank]
            # A kernel of several sends and receives waits until the last of all its partners is there.
            sync[rank][kernel] = max(sync[rank].get(kernel, 0), ns)
            if ns > longest[rank].get(kernel, (0, 0, ""))[0]:
                longest[rank][kernel] = ns, index, participant.record.step
    rows = []
    for rank_comm in sorted(ranks, key=lambda rank_comm: rank_comm.rank):
        waiting_kernels = longest[rank_comm.rank]
        kernels = np.array(sorted(waiting_kernels), dtype=np.int64)
        # Those without an entry move data all the time.
        of_kernel = (sync[rank_comm.rank].get(kernel, 0) for kernel in range(len(rank_comm.start)))
        wait_ns = np.array([*of_kernel], dtype=np.int64)
        moving = union(rank_comm.start + wait_ns, rank_comm.end)
        start, end = rank_comm.start[kernels], rank_comm.start[kernels] + wait_ns[kernels]
        # Of kernels that wait at once, the one that began first counts; what computation hides does not.
        start = exclusive(start, end, np.zeros(len(start), dtype=np.int64))
        row, start, end = cut(start, end, difference(rank_comm.alone, moving))
        waits = [waiting_kernels[kernel] for kernel in kernels[row].tolist()]
        rows.append(
            {
                "rank": [rank_comm.rank] * len(row),
                "late_rank": [verdicts[index].rank for _, index, _ in waits],
                "cause": [verdicts[index].cause for _, index, _ in waits],
                "collective": [collectives[index].collective for _, index, _ in waits],
                "step": [step for _, _, step in waits],
                "local_ts_ns": start,
                "dur_ns": end - start,
            }
        )
    return rows


def effects(delays: Delays, step_ns: float) -> Mapping[tuple[int, int], Effect]:
    """The effect of each rank and kind (of TIMES) of delay.

    Args:
        delays: of all ranks.
        step_ns: length of a step.
    """
    # What a rank lost in the first step it may have lost before the recording began, or not yet.
    left_out = len(delays.steps) > FEW_STEPS
    delays = delays.without_first() if left_out else delays
    kinds = [kind for kind in range(len(TIMES)) if kind != COMM and (delays.ns[:, kind] > 0).any()]
    tested = [kind for kind in kinds if kind not in _ONCE]
    # What each rank loses in each step beyond the median of the others.
    by_step = {kind: delays.by_step(kind) for kind in kinds}
    beyond = {kind: by_step[kind] - median_of_others(by_step[kind]) for kind in kinds}
    whole = {kind: by_step[kind] if left_out else delays.whole_by_step(kind) for kind in kinds}
    matters = [kind for kind in tested if beyond[kind].mean(axis=1).max() >= ALIKE * step_ns]
    # A rank's delays at one collective after the other are many opportunities.
    opportunities = {kind: int((delays.ns[:, kind] > TINY * step_ns).sum()) for kind in matters}
    total = sum(1 / count for count in opportunities.values())
    steps, ranks = len(delays.steps), len(delays.ranks)
    result = {}
    stands_still = delays.recurring(*_STANDS_STILL, anywhere=True)
    for kind in kinds:
        share = 1 / opportunities[kind] / total if kind in matters else 1.0
        excess_ns = (whole[kind] - median_of_others(whole[kind])).mean(axis=1)
        unrecorded_ns = whole[kind][:, 0] - by_step[kind][:, 0]
        recurs = np.zeros(ranks, dtype=bool)
        if kind not in _JUDGED_BY_TESTS:
            recurring_ns = delays.recurring(kind)
            if kind in _RECURS_ANYWHERE:
                recurring_ns = np.maximum(recurring_ns, delays.recurring(kind, anywhere=True))
            if kind in _STANDS_STILL:
                recurring_ns = np.maximum(recurring_ns, stands_still)
            recurs = recurring_ns >= RECURS * step_ns
        for index, rank in enumerate(delays.ranks):
            lost = beyond[kind][index]
            mean, low, high = float(excess_ns[index]), nan, nan
            if steps > 1:
                freedom, variance = steps - 1, float(lost.var(ddof=1))
                if steps == 2:
                    # Two steps of one rank tell little of how steps vary; those of all ranks do.
                    freedom = ranks
                    variance = max(variance, float(beyond[kind].var(axis=1, ddof=1).mean()))
                count = steps
                if steps > 2 and abs(unrecorded_ns[index]) > ALIKE * step_ns:
                    # Much of what it lost in the first step precedes the recording.
                    freedom, variance, count = steps - 2, float(lost[1:].var(ddof=1)), steps - 1
                half = t_quantile((1 - CONFIDENCE) / 2, freedom) * float(
                    np.sqrt(CORRELATED * variance / count)
                )
                low, high = mean - half, mean + half
            if mean < ALIKE * step_ns or kind in _ONCE:
                verdict = SMALL if mean < ALIKE * step_ns else ONCE
                result[rank, kind] = Effect(mean, low, high, -1.0, verdict)
                continue
            p_values = [1.0]
            # Whether the better half of the rank's steps is worse than the least of any other's worse half.
            ordered, half_steps = np.sort(by_step[kind], axis=1), max(steps // 2, 1)
            others = np.delete(ordered, index, axis=0)[:, -half_steps]
            stands_out = bool(ordered[index, :half_steps].mean() > others.max(initial=0))
            both = 3 <= steps <= MOST_STEPS
            if 2 <= steps <= MOST_STEPS and stands_out:
                p_values.append(_recurrence(delays, kind, index) * (RECURRENCE_FACTOR if both else 1))
            # The mean over steps, against what equal devices lose.
            if steps >= 3 and (more := float(lost.mean()) - ALIKE * step_ns) > 0:
                error = float(np.sqrt(CORRELATED * lost.var(ddof=1) / steps))
                p_mean = t_tail(more / error, steps - 1) if error > 0 else 0.0
                p_values.append(p_mean * ranks * (MEAN_FACTOR if both else 1))
            p_value = min(min(p_values) / share, 1.0)
            # What recurs at some places of a step need not cost anything in the sum of its steps.
            is_unlikely = p_value < ALPHA and (steps <= FEW_STEPS or low > 0 or kind == WORK)
            if is_unlikely or recurs[index]:
                verdict = SIGNIFICANT
            else:
                positions = int(delays.position.max()) + 1
                unable = steps == 1 or (steps == 2 and 1 / (ranks * positions) >= ALPHA)
                verdict = TOO_FEW if unable and stands_out else NOISE
            result[rank, kind] = Effect(mean, low, high, p_value, verdict)
    return result


def _recurrence(delays: Delays, kind: int, index: int) -> float:
    """p-value of one rank's recurring delays, for any of the ranks."""
    total = delays.by_step(kind).sum(axis=1)
    order = np.argsort(-total, kind="stable")[:MOST_RANKS]
    pool = np.append(order[order != index][: MOST_RANKS - 1], index)
    series = delays.by_position(kind, pool)
    observed = float(_recurring(series[-1][None])[0])
    if observed <= 0:
        return 1.0
    ranks, steps, positions = series.shape
    observed *= 1 - 1e-9  # sums in another order differ by rounding
    if steps == 2 and (ranks * positions) ** 2 <= _CELLS:  # all draws
        first, second = series[:, 0], series[:, 1]
        rolled = (np.roll(second, shift, axis=1) for shift in range(positions))
        recurring = (np.minimum(first[:, None], shifted[None]).sum(axis=2) for shifted in rolled)
        reached = sum(int((of_shift >= observed).sum()) for of_shift in recurring)
        return float(min(reached / (ranks**2 * positions) * ranks, 1.0))
    random = np.random.default_rng(_SEED)
    drawn, reached = 0, 1  # what was observed is one of them
    while drawn < _DRAWS and reached < _ENOUGH:
        # The first few thousand settle what is far from significant.
        count = min(max(drawn, _FIRST), max(_CELLS // (steps * positions), 1), _DRAWS - drawn)
        rank = random.integers(ranks, size=(count, steps, 1))
        position = (random.integers(positions, size=(count, steps, 1)) + np.arange(positions)) % positions
        draws = series[rank, np.arange(steps)[:, None], position]
        reached += int((_recurring(draws) >= observed).sum())
        drawn += count
    return float(min(reached / (drawn + 1) * ranks, 1.0))


def _recurring(series: Float) -> Float:
    """What recurs in more than half of the steps: by place their smaller half, summed over the places.

    Args:
        series: by draw, step and position.
    """
    steps = series.shape[1]
    half = steps // 2
    result: Float = np.sort(series, axis=1)[:, :half].mean(axis=1).sum(axis=1)
    return result

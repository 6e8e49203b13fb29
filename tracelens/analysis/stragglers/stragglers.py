"""Which ranks arrive last at collectives, what that costs, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tracelens.analysis.analyzer import analyzer
from tracelens.analysis.comm import SEND_RECV, AlignedRun, MatchedCollective
from tracelens.analysis.stragglers.causes import AT_ONCE, EXPLAINED, SMALL_NS, Comparison
from tracelens.analysis.stragglers.lost import LOST, lost_rows
from tracelens.analysis.stragglers.segments import OTHER, WORK, Segments, segments
from tracelens.analysis.stragglers.significance import (
    ALIKE,
    ALPHA,
    CONFIDENCE,
    NOISE,
    SIGNIFICANT,
    SMALL,
    TOO_FEW,
    UNTESTED,
    Effect,
    effects,
)
from tracelens.analysis.stragglers.verdict import CAUSES, IDLE, Verdict
from tracelens.table import RANK, Column, Result, Schema, Skip, result
from tracelens.trace import Scope

SHOWN = 20

_LONGEST_NS = 1 << 62

WHY = {
    "token_load": "more rows of tokens in the same ops",
    "extra_work": "more or different work than the others: more calls, other ops or shapes",
    "slow_kernels": "same calls and shapes, but slower on its GPU",
    "silent_host": "GPU idle: the host was in no recorded op or call (the program's own Python, "
    "unrecorded garbage collection, logging, checkpoints, or a process that slept or had "
    "no core)",
    "data_loading": "GPU idle: the host was fetching the next batch",
    "blocking_call": "GPU idle: the host was in a call that waits or copies synchronously",
    "garbage_collection": "GPU idle: Python collected garbage",
    "collective_call": "GPU idle: the host was inside a collective call",
    "late_launch": "GPU idle: the host was late, in ops, calls and the Python between them",
    "inherited": "already late when it left a collective of another group, or when its recording began",
    "unknown": f"nothing in the trace explains {EXPLAINED:.0%} of the lateness, or the others waited less "
    f"than {SMALL_NS // 1000} us in total",
}
_KIND = {cause: kind for kind, cause in IDLE.items()} | {
    "token_load": WORK,
    "extra_work": WORK,
    "slow_kernels": WORK,
    "unknown": OTHER,
}
_DOC = "; ".join(f"{cause}: {WHY[cause]}" for cause in CAUSES)

_EFFECT = (
    Column("effect_ns", "int64", "ns", "time lost per step to this cause, beyond the median of the others"),
    Column(
        "effect_low_ns",
        "int64",
        "ns",
        f"lower end of the {CONFIDENCE:.0%} confidence interval; -1 (upper end too) with one step",
    ),
    Column("effect_high_ns", "int64", "ns", "upper end of the interval"),
    Column(
        "p_value",
        "float64",
        doc="p-value: upper bound of the probability that any rank loses as much without a fault; -1 if "
        f"it loses less than {ALIKE:.0%} of a step, or if the cause is not tested",
    ),
    Column(
        "significance",
        "str",
        doc=f"{SIGNIFICANT}: p-value below {ALPHA:.0%}; {NOISE}: not; {TOO_FEW}: too few to tell from "
        f"noise; {SMALL}: the rank loses less than {ALIKE:.0%} of a step to it; {UNTESTED}: inherited "
        "lateness",
    ),
)

STRAGGLERS = Schema(
    "Late ranks",
    (
        RANK,
        Column("caused_wait_ns", "int64", "ns", "waiting of all other ranks for it"),
        Column("last_count", "int64", "count", "collectives at which it was last, or held up the last rank"),
        Column(
            "cause",
            "str",
            doc="significant cause of most of that waiting; if none is significant, the largest",
        ),
        Column("evidence", "str", doc="evidence for that cause, at the longest wait", prose=True),
        Column("cause_fraction", "float64", "fraction", "share of the waiting this rank causes"),
        Column("fraction", "float64", "fraction", "share of the waiting that all ranks cause"),
        Column("time_fraction", "float64", "fraction", "mean waiting of another rank for it / recorded time"),
        *_EFFECT,
        Column("significant", "bool", doc="is the rank a significant straggler for that cause?"),
    ),
    doc="Worst first. A rank's work since its previous collective is compared with the median of the other "
    f"ranks, weighted by their waiting. {_DOC}.",
    key=(),
    leading="caused_wait_ns",
    descending=True,
)

CAUSE_TABLE = Schema(
    "Causes of waiting",
    (
        Column("rank", "int64", doc="rank that was last, or held up the last rank"),
        Column("cause", "str", doc=_DOC),
        Column("caused_wait_ns", "int64", "ns", "waiting of all other ranks"),
        Column("count", "int64", "count", "collectives"),
        Column("fraction", "float64", "fraction", "share of the waiting that all ranks cause"),
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


TABLES = {"stragglers": STRAGGLERS, "causes": CAUSE_TABLE, "worst": WORST, "lost": LOST}


@analyzer("stragglers", title="Stragglers", order=84, part=segments, shared=("aligned run",), tables=TABLES)
def stragglers(parts: Sequence[Segments], aligned: AlignedRun, *, scope: Scope = "all") -> Result:
    """Which ranks arrive last at collectives, how long do the others wait, and why?

    A late arrival is explained by what the last rank did since its previous collective that the others did
    not: more or slower computation, or an idle GPU, and what its host was doing.

    Reading:
        Begin with rows that are `significant`: `effect_ns` is what the cause takes per step, with its
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
        and cause), `worst` (the collectives with most waiting) and `lost` (when a rank only waits, by cause).
    """
    collectives = aligned.collectives
    comparison = Comparison({part.rank: part for part in parts}, aligned)
    verdicts = comparison.verdicts()
    waits = [sum(collective.wait_ns.values()) for collective in collectives]
    cases = list(zip(collectives, waits, verdicts, strict=True))
    step_ns = float(np.median([part.step_ns for part in parts if len(part.edges)] or [0]))
    causes = _by_cause(cases, effects(comparison.recorder.delays(), step_ns), step_ns)
    recorded = _recorded_ns(parts)
    tables = {
        "stragglers": STRAGGLERS.from_rows(_by_rank(causes, _tested_waits(cases), recorded)),
        "causes": CAUSE_TABLE.from_rows(causes),
        "worst": WORST.from_rows(_worst(cases)),
        "lost": LOST.concat(lost_rows(aligned, verdicts)),
    }
    skips = [*aligned.skips, *_unblamed(aligned, verdicts), *_cut(comparison), *_too_few(causes)]
    return result(tables, skips, scope=scope)


_Case = tuple[MatchedCollective, int, Verdict]


def _by_cause(
    cases: Sequence[_Case], effect_of: Mapping[tuple[int, int], Effect], step_ns: float
) -> list[dict[str, Any]]:
    """Rows of CAUSE_TABLE, worst first."""
    groups: dict[tuple[int, str], list[_Case]] = {}
    for case in cases:
        groups.setdefault((case[2].rank, case[2].cause), []).append(case)
    total = max(sum(wait for _, wait, _ in cases), 1)
    waits = {key: sum(wait for _, wait, _ in same_cause) for key, same_cause in groups.items()}
    rows = []
    for (rank, cause), same_cause in groups.items():
        wait = waits[rank, cause]
        worst = max(same_cause, key=lambda case: case[1])
        rows.append(
            {
                "rank": rank,
                "cause": cause,
                "caused_wait_ns": wait,
                "count": len(same_cause),
                "fraction": wait / total,
                "evidence": _located(worst),
                **_effect_row(cause, rank, effect_of, waits, step_ns),
            }
        )
    return sorted(rows, key=lambda row: (-row["caused_wait_ns"], row["rank"], row["cause"]))


def _effect_row(
    cause: str,
    rank: int,
    effect_of: Mapping[tuple[int, int], Effect],
    waits: Mapping[tuple[int, str], int],
    step_ns: float,
) -> dict[str, Any]:
    """The columns of _EFFECT: of causes that are one kind of delay, each has its share by the waiting."""
    kind = _KIND.get(cause)
    effect = effect_of.get((rank, -1 if kind is None else kind))
    if effect is None:
        effect = Effect(0, -1, -1, -1, UNTESTED if kind is None else SMALL)
    same_kind = sum(waits.get((rank, other), 0) for other, of_kind in _KIND.items() if of_kind == kind)
    share = waits[rank, cause] / same_kind if same_kind else 1.0
    if kind is not None and effect.ns * share < ALIKE * step_ns:
        effect = effect._replace(p_value=-1, verdict=SMALL)
    low, high = (
        (effect.low, effect.high) if effect.low == effect.high else (effect.low * share, effect.high * share)
    )
    return {
        "effect_ns": round(effect.ns * share),
        # The interval of damaged time stamps can be wider than 64 bits hold.
        "effect_low_ns": round(max(low, -_LONGEST_NS)),
        "effect_high_ns": round(min(high, _LONGEST_NS)),
        "p_value": effect.p_value,
        "significance": effect.verdict,
    }


def _recorded_ns(parts: Sequence[Segments]) -> float:
    """Recorded time of the other ranks together, as seen by one."""
    spans = [int(part.edges[-1] - part.edges[0]) for part in parts if len(part.edges)]
    return max(float(np.median(spans)) if spans else 0.0, 1.0) * max(len(spans) - 1, 1)


def _tested_waits(cases: Sequence[_Case]) -> dict[int, int]:
    """Waiting that each rank caused in collectives; a receive waits for its sender in every schedule."""
    waits: dict[int, int] = {}
    for collective, wait, verdict in cases:
        counted = wait if collective.collective != SEND_RECV else 0
        waits[verdict.rank] = waits.get(verdict.rank, 0) + counted
    return waits


def _located(case: _Case) -> str:
    collective, wait, verdict = case
    text = f"{collective.collective} {collective.order} of {collective.group}"
    return f"{verdict.evidence} (before {text})" if wait else ""


def _by_rank(
    causes: Sequence[dict[str, Any]], waits: Mapping[int, int], recorded_ns: float
) -> list[dict[str, Any]]:
    """Rows of STRAGGLERS from those of CAUSE_TABLE, whose order is theirs."""
    ranks: dict[int, list[dict[str, Any]]] = {}
    for row in causes:
        ranks.setdefault(row["rank"], []).append(row)
    rows = []
    for rank, of_rank in ranks.items():
        wait = sum(row["caused_wait_ns"] for row in of_rank)
        main = next((row for row in of_rank if row["significance"] == SIGNIFICANT), of_rank[0])
        rows.append(
            {
                **main,
                "caused_wait_ns": wait,
                "last_count": sum(row["count"] for row in of_rank),
                "cause_fraction": main["caused_wait_ns"] / max(wait, 1),
                "fraction": min(sum(row["fraction"] for row in of_rank), 1.0),
                # Collectives that overlap are waited for at the same time, but each counts.
                "time_fraction": min(waits[rank] / recorded_ns, 1.0),
                "significant": main["significance"] == SIGNIFICANT,
            }
        )
    return sorted(rows, key=lambda row: (-row["caused_wait_ns"], row["rank"]))


def _worst(cases: Sequence[_Case]) -> list[dict[str, Any]]:
    return [
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


def _too_few(causes: Sequence[dict[str, Any]]) -> list[Skip]:
    """Late ranks of which nobody can tell whether chance made them late."""
    ranks = sorted({row["rank"] for row in causes if row["significance"] == TOO_FEW})
    if not ranks:
        return []
    subject = f"whether rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))} stand out from noise"
    if len(ranks) == 1:
        subject = subject.replace("stand out", "stands out")
    return [Skip(subject, "too few steps of too few ranks are recorded; record more steps")]


def _cut(comparison: Comparison) -> list[Skip]:
    """Where more communication came before a late arrival than was looked at."""
    if not comparison.cut:
        return []
    reason = f"the search for the cause covers only the last {AT_ONCE:,} communication kernels before each"
    return [Skip(f"earlier causes of {comparison.cut:,} late arrivals", reason)]


def _unblamed(aligned: AlignedRun, verdicts: Sequence[Verdict]) -> list[Skip]:
    """Ranks that are in no table, each with the reason."""
    last = {verdict.rank for verdict in verdicts}
    met = {participant.rank for collective in aligned.collectives for participant in collective.participants}
    skips = []
    for rank_comm in aligned.ranks:
        rank = rank_comm.rank
        if rank in last:
            continue
        if not len(rank_comm.start):
            why = "no communication kernel in the trace"
        elif rank in met:
            why = "no rank waited for it"
        else:
            why = "none of its collectives is recorded on another rank"
        skips.append(Skip(f"rank {rank}", why))
    return skips

"""Which ranks arrive last at collectives, what that costs, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tracelens.analysis.analyzer import analyzer
from tracelens.analysis.comm import AlignedRun, MatchedCollective
from tracelens.analysis.stragglers.causes import AT_ONCE, CAUSES, EXPLAINED, SMALL_NS, Comparison, Verdict
from tracelens.analysis.stragglers.lost import LOST, lost_rows
from tracelens.analysis.stragglers.segments import Segments, segments
from tracelens.analysis.stragglers.significance import ALIKE, ALPHA, Noise, noise
from tracelens.table import Column, Result, Schema, Skip, result
from tracelens.trace import Scope

SHOWN = 20

WHY = {
    "token_load": "more to compute: larger shapes or more calls",
    "slow_kernels": "same calls and shapes, but slower on its GPU",
    "late_launch": "GPU idle: the host launched late",
    "blocking_call": "GPU idle: the host was in a call that waits or copies synchronously",
    "garbage_collection": "GPU idle: Python collected garbage",
    "inherited": "already late when it left a collective of another group, or when its recording began",
    "unknown": f"nothing in the trace explains {EXPLAINED:.0%} of the lateness, or the others waited less "
    f"than {SMALL_NS // 1000} us in total",
}
_DOC = "; ".join(f"{cause}: {WHY[cause]}" for cause in CAUSES)

STRAGGLERS = Schema(
    "Late ranks",
    (
        Column("rank", "int64"),
        Column("caused_wait_ns", "int64", "ns", "waiting of all other ranks for it"),
        Column("last_count", "int64", "count", "collectives at which it was last, or held up the last rank"),
        Column("cause", "str", doc="cause of most of that waiting"),
        Column("evidence", "str", doc="of that cause, at the longest wait", prose=True),
        Column("cause_fraction", "float64", "fraction", "of the rank's caused waiting"),
        Column("fraction", "float64", "fraction", "of the waiting that all ranks caused"),
        Column(
            "time_fraction", "float64", "fraction", "mean waiting of another rank for it, of recorded time"
        ),
        Column(
            "p_value",
            "float64",
            doc="p-value: bound of the probability of as much waiting for any rank if all were equal; -1 "
            f"if others wait for less than {ALIKE:.0%} of the time",
        ),
        Column(
            "significant",
            "bool",
            doc=f"significant straggler: p-value below {ALPHA:.0%} (or too few collectives to test), and "
            f"others wait for at least {ALIKE:.0%} of the time, more than equal GPUs cause",
        ),
    ),
    doc="Worst first. A rank's work since its previous collective is compared with the median of the other "
    f"ranks, weighted by their waiting. {_DOC}.",
)

CAUSE_TABLE = Schema(
    "Causes of waiting",
    (
        Column("rank", "int64", doc="that was last, or held up the last rank"),
        Column("cause", "str", doc=_DOC),
        Column("caused_wait_ns", "int64", "ns", "waiting of all other ranks"),
        Column("count", "int64", "count", "collectives"),
        Column("fraction", "float64", "fraction", "of the waiting that all ranks caused"),
        Column("evidence", "str", doc="at the longest wait", prose=True),
    ),
)

WORST = Schema(
    "Longest waits",
    (
        Column("collective", "category"),
        Column("group", "category", doc="process group"),
        Column("order", "int64", "count", "position among the collectives of the group"),
        Column("last_rank", "int64", doc="last to arrive"),
        Column("wait_ns", "int64", "ns", "waiting of all other ranks"),
        Column("cause", "str"),
        Column("evidence", "str", prose=True),
        Column("late_ns", "int64", "ns", "arrival after the median of the others, weighted by their waiting"),
    ),
)


@analyzer("stragglers", title="Stragglers", order=84, part=segments, shared=("aligned run",))
def stragglers(parts: Sequence[Segments], aligned: AlignedRun, *, scope: Scope = "all") -> Result:
    """Which ranks arrive last at collectives, how long do the others wait, and why?

    A late arrival is explained by what the last rank did since its previous collective that the others did
    not: more or slower computation, or an idle GPU, and what its host was doing.

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
    causes = _by_cause(cases)
    tables = {
        "stragglers": STRAGGLERS.from_rows(_by_rank(causes, noise(parts, collectives, verdicts))),
        "causes": CAUSE_TABLE.from_rows(causes),
        "worst": WORST.from_rows(_worst(cases)),
        "lost": LOST.concat(lost_rows(aligned, verdicts)),
    }
    skips = [*aligned.skips, *_unblamed(aligned, verdicts), *_cut(comparison)]
    return result(tables, skips, scope=scope)


_Case = tuple[MatchedCollective, int, Verdict]


def _by_cause(cases: Sequence[_Case]) -> list[dict[str, Any]]:
    """Rows of CAUSE_TABLE, worst first."""
    groups: dict[tuple[int, str], list[_Case]] = {}
    for case in cases:
        groups.setdefault((case[2].rank, case[2].cause), []).append(case)
    total = max(sum(wait for _, wait, _ in cases), 1)
    rows = []
    for (rank, cause), same_cause in groups.items():
        wait = sum(case[1] for case in same_cause)
        worst = max(same_cause, key=lambda case: case[1])
        rows.append(
            {
                "rank": rank,
                "cause": cause,
                "caused_wait_ns": wait,
                "count": len(same_cause),
                "fraction": wait / total,
                "evidence": _located(worst),
            }
        )
    return sorted(rows, key=lambda row: (-row["caused_wait_ns"], row["rank"], row["cause"]))


def _located(case: _Case) -> str:
    collective, wait, verdict = case
    text = f"{collective.collective} {collective.order} of group {collective.group}"
    return f"{verdict.evidence} (before {text})" if wait else ""


def _by_rank(causes: Sequence[dict[str, Any]], noise_of: Mapping[int, Noise]) -> list[dict[str, Any]]:
    """Rows of STRAGGLERS from those of CAUSE_TABLE, whose order is theirs."""
    ranks: dict[int, list[dict[str, Any]]] = {}
    for row in causes:
        ranks.setdefault(row["rank"], []).append(row)
    rows = []
    for rank, (main, *minor) in ranks.items():
        wait = sum(row["caused_wait_ns"] for row in (main, *minor))
        rows.append(
            {
                "rank": rank,
                "caused_wait_ns": wait,
                "last_count": sum(row["count"] for row in (main, *minor)),
                "cause": main["cause"],
                "evidence": main["evidence"],
                "cause_fraction": main["caused_wait_ns"] / max(wait, 1),
                "fraction": min(sum(row["fraction"] for row in (main, *minor)), 1.0),
                "time_fraction": noise_of[rank].fraction,
                "p_value": noise_of[rank].p_value,
                "significant": noise_of[rank].beyond,
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


def _cut(comparison: Comparison) -> list[Skip]:
    """Where more communication came before a late arrival than was looked at."""
    if not comparison.cut:
        return []
    reason = f"only the last {AT_ONCE:,} communication kernels before each are searched for the cause"
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

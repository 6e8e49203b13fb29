"""Who arrives last at collectives, what that costs the others, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tracelens.analysis.analyzer import analyzer
from tracelens.analysis.comm import MatchedCollective, aligned, base_ns, clocks, match
from tracelens.analysis.stragglers.causes import AT_ONCE, CAUSES, EXPLAINED, SMALL_NS, Comparison, Verdict
from tracelens.analysis.stragglers.lost import LOST, lost_rows
from tracelens.analysis.stragglers.segments import Segments, segments
from tracelens.analysis.stragglers.significance import ALIKE, RARE, Noise, noise
from tracelens.table import Column, Result, Schema, Skip, result, stack
from tracelens.trace import Scope

SHOWN = 20

WHY = {
    "token_load": "it had more to compute: larger shapes or more calls",
    "slow_kernels": "the same calls with the same shapes took longer on its GPU",
    "late_launch": "its GPU stood idle because the host launched late",
    "blocking_call": "its GPU stood idle because the host sat in a call that waits or copies synchronously",
    "garbage_collection": "its GPU stood idle because Python collected garbage",
    "inherited": "it was late already when it left communication with ranks that are not in this one, or "
    "when its recording began",
    "unknown": f"nothing in the trace accounts for {EXPLAINED:.0%} of the lateness, or the others waited "
    f"less than {SMALL_NS // 1000} us in all",
}
_DOC = "; ".join(f"{cause}: {WHY[cause]}" for cause in CAUSES)

STRAGGLERS = Schema(
    "Who the others wait for",
    (
        Column("rank", "int64"),
        Column("caused_wait_ns", "int64", "ns", "what all others waited for it"),
        Column("last_count", "int64", "count", "collectives at which it arrived last, or held up who did"),
        Column("cause", "str", doc="the one with most of that waiting"),
        Column("evidence", "str", doc="of that cause, where the others waited longest", prose=True),
        Column("cause_fraction", "float64", "fraction", "of the rank's caused waiting, due to this cause"),
        Column("fraction", "float64", "fraction", "of the waiting that all ranks caused"),
        Column(
            "time_fraction", "float64", "fraction", "what another rank waits for it, of the recorded time"
        ),
        Column(
            "chance",
            "float64",
            doc="at most so probable for any rank, were each one the last equally often; -1 where others "
            f"wait for less than {ALIKE:.0%} of the time",
        ),
        Column(
            "beyond_noise",
            "bool",
            doc=f"a straggler: chance below {RARE:.0%}, or too few collectives to tell, and others wait for "
            f"at least {ALIKE:.0%} of the time, more than equal GPUs make each other wait",
        ),
    ),
    doc="Worst first. A rank's work since the communication before is compared with the median of the "
    f"others, each counted by what it waited. {_DOC}.",
)

CAUSE_TABLE = Schema(
    "Why the others wait",
    (
        Column("rank", "int64", doc="that arrived last, or held up who did"),
        Column("cause", "str", doc=_DOC),
        Column("caused_wait_ns", "int64", "ns", "what all others waited"),
        Column("count", "int64", "count", "collectives"),
        Column("fraction", "float64", "fraction", "of the waiting that all ranks caused"),
        Column("evidence", "str", doc="where the others waited longest", prose=True),
    ),
)

WORST = Schema(
    "The longest waits",
    (
        Column("collective", "category"),
        Column("group", "category", doc="process group"),
        Column("order", "int64", "count", "position among the collectives of the group"),
        Column("last_rank", "int64", doc="who arrived last"),
        Column("wait_ns", "int64", "ns", "what all others waited"),
        Column("cause", "str"),
        Column("evidence", "str", prose=True),
        Column("late_ns", "int64", "ns", "arrival behind the median of the others, each by what it waited"),
    ),
)


@analyzer("stragglers", title="Stragglers", order=84, part=segments)
def stragglers(parts: Sequence[Segments], *, scope: Scope = "all") -> Result:
    """Who arrives last at collectives, how much do the others wait for it, and why?

    The cause of one late arrival is what the last rank did more since its last communication than the
    others: computed more or more slowly, or left its GPU idle, and what its host was in.

    Args:
        parts: from `segments`.
        scope: "all", or "linked" for work whose launch call is in the trace.

    Returns:
        tables `stragglers` (one row a rank that was waited for, and whether beyond noise), `causes` (by rank
        and cause), `worst` (the instances with most waiting) and `lost` (when a rank only waits, by cause).
    """
    ranks = [part.comms for part in parts]
    found = match(ranks)
    clock = clocks(ranks, found.instances)
    offset = {one.rank: one.offset_ns for one in clock}
    instances = [one._replace(members=aligned(one, offset)) for one in found.instances]
    instances.sort(key=lambda one: min(member.start for member in one.members))
    own = {one.rank: offset[one.rank] - base_ns(one, ranks[0]) for one in ranks}
    comparison = Comparison({part.comms.rank: part for part in parts}, instances, own)
    verdicts = comparison.verdicts()
    waits = [sum(one.wait_ns.values()) for one in instances]
    cases = list(zip(instances, waits, verdicts, strict=True))
    causes = _by_cause(cases)
    tables = {
        "stragglers": stack(STRAGGLERS, _by_rank(causes, noise(parts, instances, verdicts))),
        "causes": stack(CAUSE_TABLE, causes),
        "worst": stack(WORST, _worst(cases)),
        "lost": stack(LOST, lost_rows(ranks, instances, verdicts)),
    }
    skips = [*found.skips, *_unblamed(parts, instances, verdicts), *_cut(comparison)]
    return result(tables, skips, scope=scope)


_Case = tuple[MatchedCollective, int, Verdict]


def _by_cause(cases: Sequence[_Case]) -> list[dict[str, Any]]:
    """Rows of CAUSE_TABLE, worst first."""
    groups: dict[tuple[int, str], list[_Case]] = {}
    for case in cases:
        groups.setdefault((case[2].rank, case[2].cause), []).append(case)
    total = max(sum(wait for _, wait, _ in cases), 1)
    rows = []
    for (rank, cause), some in groups.items():
        wait = sum(case[1] for case in some)
        worst = max(some, key=lambda case: case[1])
        rows.append(
            {
                "rank": [rank],
                "cause": [cause],
                "caused_wait_ns": [wait],
                "count": [len(some)],
                "fraction": [wait / total],
                "evidence": [_located(worst)],
            }
        )
    return sorted(rows, key=lambda row: (-row["caused_wait_ns"][0], row["rank"][0], row["cause"][0]))


def _located(case: _Case) -> str:
    instance, wait, verdict = case
    text = f"{instance.collective} {instance.order} of group {instance.group}"
    return f"{verdict.evidence} (before {text})" if wait else ""


def _by_rank(causes: Sequence[dict[str, Any]], noise_of: Mapping[int, Noise]) -> list[dict[str, Any]]:
    """Rows of STRAGGLERS from those of CAUSE_TABLE, whose order is theirs."""
    ranks: dict[int, list[dict[str, Any]]] = {}
    for row in causes:
        ranks.setdefault(row["rank"][0], []).append(row)
    rows = []
    for rank, (main, *others) in ranks.items():
        wait = sum(row["caused_wait_ns"][0] for row in (main, *others))
        rows.append(
            {
                "rank": [rank],
                "caused_wait_ns": [wait],
                "last_count": [sum(row["count"][0] for row in (main, *others))],
                "cause": main["cause"],
                "evidence": main["evidence"],
                "cause_fraction": [main["caused_wait_ns"][0] / max(wait, 1)],
                "fraction": [min(sum(row["fraction"][0] for row in (main, *others)), 1.0)],
                "time_fraction": [noise_of[rank].fraction],
                "chance": [noise_of[rank].chance],
                "beyond_noise": [noise_of[rank].beyond],
            }
        )
    return sorted(rows, key=lambda row: (-row["caused_wait_ns"][0], row["rank"][0]))


def _worst(cases: Sequence[_Case]) -> list[dict[str, Any]]:
    return [
        {
            "collective": [instance.collective],
            "group": [instance.group],
            "order": [instance.order],
            "last_rank": [instance.last.rank],
            "wait_ns": [wait],
            "cause": [verdict.cause],
            "evidence": [verdict.evidence],
            "late_ns": [verdict.late_ns],
        }
        for instance, wait, verdict in sorted(cases, key=lambda case: -case[1])[:SHOWN]
        if wait
    ]


def _cut(comparison: Comparison) -> list[Skip]:
    """Where more communication came before a late arrival than was looked at."""
    if not comparison.cut:
        return []
    reason = f"only the last {AT_ONCE:,} communication kernels before each are searched for the cause"
    return [Skip(f"earlier causes of {comparison.cut:,} late arrivals", reason)]


def _unblamed(
    parts: Sequence[Segments], instances: Sequence[MatchedCollective], verdicts: Sequence[Verdict]
) -> list[Skip]:
    """Ranks that are in no table, each with the reason."""
    last = {verdict.rank for verdict in verdicts}
    met = {member.rank for instance in instances for member in instance.members}
    skips = []
    for part in parts:
        rank = part.comms.rank
        if rank in last:
            continue
        if not len(part.comms.start):
            why = "no communication kernel in the trace"
        elif rank in met:
            why = "nobody waited for it"
        else:
            why = "none of its collectives was recorded on another rank as well"
        skips.append(Skip(f"rank {rank}", why))
    return skips

"""What to fix first: detections ranked by the time that fixing them saves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tracelens.analysis import analyzer
from tracelens.analysis.common import choose_device, own_device
from tracelens.findings.confidence import doubted
from tracelens.findings.detectors import DETECTORS, JOB, Detection, Outcome
from tracelens.findings.rank_context import RankContext
from tracelens.findings.ranking import Candidate, Ranked, ranked
from tracelens.guard import Failure
from tracelens.table import Column, Result, Schema, Skip, result
from tracelens.trace import Trace

NEEDS = ("collectives", "completeness", "moe", "pipeline", "serving", "stragglers")
"""Analyzers whose results detectors read, and the doubts about the recording."""

SHOWN = 0.005
"""A saving below this share of a step is not a finding."""

FINDINGS = Schema(
    "What to fix first",
    (
        Column("position", "int64", "count"),
        Column("finding", "str"),
        Column("saving_ns", "int64", "ns", "per step, if only this is fixed; mean of the ranks"),
        Column("fraction", "float64", "fraction", "of the step"),
        Column("additional_ns", "int64", "ns", "of it, not already saved by the findings above"),
        Column("confidence", "category", doc="high: the trace shows the lost time; medium: the "
               "remaining time is estimated; low: an upper bound"),
        Column("evidence", "str", doc="on the rank that loses most", prose=True),
        Column("remedy", "str", prose=True),
        Column("worst_rank", "int64", doc="that loses most, -1 for the whole job"),
        Column("ts_ns", "int64", "ns", "where it loses most, since its trace's first event; -1 if unknown"),
        Column("detector", "category"),
        Column("explained_by", "category", doc="for a symptom: detector of the cause with most of its time"),
    ),
    kind="entries",
    doc=f"Ranked by recoverable step time, symptoms below their causes. Savings per step; under {SHOWN:.1%} "
    "hidden. Time shared by several findings counts for the cause, else for the first of them.",
)  # fmt: skip

MEASUREMENTS = Schema(
    "Measurements of the detectors",
    (
        Column("rank", "int64", doc="-1 for the whole job"),
        Column("detector", "category", doc="'' for the mean step"),
        Column("measure", "category", doc="what was measured; saving: per step"),
        Column("value", "float64"),
        Column("unit", "category"),
    ),
    detail=True,
)

CHECKS = Schema(
    "Checks",
    (
        Column("detector", "category"),
        Column("signature", "str", prose=True),
        Column("ranks", "int64", "count", "that show it"),
        Column("saving_ns", "int64", "ns", "per step, mean of the ranks"),
        Column("verdict", "str", doc="finding, or why not", prose=True),
    ),
    kind="entries",
    detail=True,
)


class RankDetections(NamedTuple):
    """What the detectors found on one rank.

    Attributes:
        rank: of the trace.
        origin: time of its first event, ns.
        step_ns: mean duration of a step.
        outcomes: by detector.
        cpu_only: whether the work is the host's.
    """

    rank: int
    origin: int
    step_ns: float
    outcomes: dict[str, Outcome]
    cpu_only: bool = False


def rank_detections(
    trace: Trace, *, device: str | None = None, device_file: str | None = None
) -> RankDetections:
    """What the detectors that look at single ranks find on this one; options as for `findings`."""
    context = RankContext(trace, choose_device(device, device_file) or own_device(trace))
    outcomes = {name: item.of_rank(context) for name, item in DETECTORS.items() if not item.needs}
    origin = int(trace.arrays.start.min())
    return RankDetections(trace.meta.rank, origin, context.step_ns, outcomes, context.work.cpu_only)


@analyzer("findings", title="What to fix first", order=0, part=rank_detections, needs=NEEDS)
def findings(ranks: Sequence[RankDetections], results: Mapping[str, Result]) -> Result:
    """What should be fixed first, what does it save, and how?

    Args:
        ranks: from `rank_detections`, whose options are `device` and `device_file`, as for `roofline`.
        results: of the analyzers that detectors read.

    Returns:
        tables `findings`, `measurements` and `checks`.

    Raises:
        TracelensError: no such device, or the file is no device file.
    """
    by_rank = {rank.rank: rank for rank in ranks}
    step_ns = sum(rank.step_ns for rank in ranks) / len(ranks)
    outcomes: dict[str, Mapping[int, Detection] | str] = {
        name: item.of_run(results) if item.needs else _together(name, ranks)
        for name, item in DETECTORS.items()
    }
    candidates = [
        Candidate.of(item, detections, len(ranks))
        for name, item in DETECTORS.items()
        if not isinstance(detections := outcomes[name], str)
    ]
    worth = [candidate for candidate in candidates if candidate.saving_ns > max(SHOWN * step_ns, 0)]
    rows = [
        _row(position, finding, step_ns, by_rank, results["completeness"])
        for position, finding in enumerate(ranked(worth, len(ranks)), start=1)
    ]
    verdicts = {
        candidate.detector.name: "finding" if candidate in worth else f"below {SHOWN:.1%} of a step"
        for candidate in candidates
    }
    tables = {
        "findings": FINDINGS.from_rows(rows),
        "measurements": MEASUREMENTS.from_rows([*_steps(ranks), *_measured(candidates)]),
        "checks": CHECKS.from_rows(_checked(outcomes, candidates, verdicts)),
    }
    skips = [] if rows else [Skip("findings", f"nothing costs more than {SHOWN:.1%} of a step, see `checks`")]
    reasons = [*outcomes.values(), *(reason for rank in ranks for reason in rank.outcomes.values())]
    failures = {reason.part: reason for reason in reasons if isinstance(reason, Failure)}
    skips += [Skip(part, failure) for part, failure in failures.items()]
    return result(tables, skips)


def _together(name: str, ranks: Sequence[RankDetections]) -> Mapping[int, Detection] | str:
    """The detections of all ranks, or why no rank has one."""
    outcomes = {rank.rank: rank.outcomes[name] for rank in ranks}
    detections = {rank: outcome for rank, outcome in outcomes.items() if isinstance(outcome, Detection)}
    return detections or "; ".join(dict.fromkeys(str(reason) for reason in outcomes.values()))


def _row(
    position: int,
    finding: Ranked,
    step_ns: float,
    ranks: Mapping[int, RankDetections],
    doubts: Result,
) -> dict[str, Any]:
    candidate, cause = finding.candidate, finding.cause
    worst = candidate.worst
    detection = doubted(candidate.detections, worst, doubts)
    cpu_only = any(rank.cpu_only for rank in ranks.values())
    prefix = f"rank {worst}: " if len(ranks) > 1 and worst != JOB else ""
    at_ns = -1
    if worst in ranks and detection.where.total:
        longest = int(np.argmax(detection.where.end - detection.where.start))
        at_ns = int(detection.where.start[longest]) - ranks[worst].origin
    return {
        "position": position,
        "finding": candidate.detector.title,
        "saving_ns": round(candidate.saving_ns),
        "fraction": min(candidate.saving_ns / max(step_ns, 1), 1.0),
        "additional_ns": round(finding.additional_ns),
        "confidence": detection.confidence,
        "evidence": f"{prefix}{detection.evidence}{_explained(finding)}",
        "remedy": (cpu_only and candidate.detector.host_remedy) or candidate.detector.remedy,
        "worst_rank": worst,
        "ts_ns": at_ns,
        "detector": candidate.detector.name,
        "explained_by": cause.detector.name if cause else "",
    }


def _explained(finding: Ranked) -> str:
    """How much of a symptom its cause explains, as the end of a sentence; "" where none does."""
    if finding.cause is None:
        return ""
    title = finding.cause.detector.title
    return f"; {finding.explained:.0%} of this time lies within another finding: {title}"


def _steps(ranks: Sequence[RankDetections]) -> list[dict[str, Any]]:
    """What all figures are of: a mean step of each rank."""
    return [
        {"rank": rank.rank, "detector": "", "measure": "step", "value": rank.step_ns, "unit": "ns"}
        for rank in ranks
    ]


def _measured(candidates: Sequence[Candidate]) -> list[dict[str, Any]]:
    return [
        {"rank": rank, "detector": candidate.detector.name, "measure": measure, "value": value, "unit": unit}
        for candidate in candidates
        for rank, detection in sorted(candidate.detections.items())
        for measure, value, unit in (*detection.quantities, ("saving", float(detection.saving_ns), "ns"))
    ]


def _checked(
    outcomes: Mapping[str, Mapping[int, Detection] | str],
    candidates: Sequence[Candidate],
    verdicts: Mapping[str, str],
) -> list[dict[str, Any]]:
    saving = {candidate.detector.name: candidate.saving_ns for candidate in candidates}
    return [
        {
            "detector": name,
            "signature": item.doc,
            "ranks": 0 if isinstance(outcome := outcomes[name], str) else len(outcome),
            "saving_ns": round(saving.get(name, 0)),
            "verdict": outcome if isinstance(outcome, str) else verdicts[name],
        }
        for name, item in DETECTORS.items()
    ]

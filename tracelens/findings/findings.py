"""What to fix first: detections ranked by the time that fixing them saves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tracelens.analysis import analyzer
from tracelens.analysis.common import choose_device, own_device
from tracelens.findings.actions import Commands, Recording
from tracelens.findings.candidates import Candidate, StepTime
from tracelens.findings.confidence import doubted, trusted
from tracelens.findings.detectors import DETECTORS, JOB, Detection, Outcome
from tracelens.findings.rank_context import RankContext
from tracelens.findings.ranking import Ranked, ranked
from tracelens.findings.remedies import remedy
from tracelens.findings.replays import Replays
from tracelens.guard import Failure
from tracelens.table import Column, Result, Schema, Skip
from tracelens.trace import Trace
from tracelens.units import duration
from tracelens.what_if import Projector

NEEDS = ("collectives", "completeness", "moe", "pipeline", "serving", "stragglers")
"""Analyzers whose results detectors read, and the doubts about the recording."""

SHOWN = 0.005
"""A saving below this share of a step is not a finding."""

FINDINGS = Schema(
    "What to fix first",
    (
        Column("position", "int64", "count", "1 saves most"),
        Column("finding", "str", doc="what happens"),
        Column("additional_ns", "int64", "ns", "saving once the findings above are fixed; of a symptom, "
                                               "once all its causes are; mean of the ranks"),
        Column("fraction", "float64", "fraction", "of the step"),
        Column("saving_ns", "int64", "ns", "saving if only this is fixed"),
        Column("low_ns", "int64", "ns", "lower end of the saving: over all recorded steps, with "
                                        "unexplained delays kept, at their median or removed, and with "
                                        "half the host time if the step without the profiler is unknown"),
        Column("high_ns", "int64", "ns", "upper end of the saving"),
        Column("basis", "category", doc="of the saving: replayed under the scenario, or an upper bound"),
        Column("scenario", "str", doc="scenario for `tracelens project whatif PATH --scenario`, which "
                                      "shows the saving; '' for an estimate"),
        Column("confidence", "category", doc="high: replayed, and the trace shows the lost time; medium: "
                                             "replayed, and the remaining time is estimated; low: the "
                                             "most that the remedy can save, or a doubtful recording"),
        Column("evidence", "str", doc="on the rank that loses most", prose=True),
        Column("upper_bound", "str", doc="why the saving is an upper bound", prose=True),
        Column("remedy", "str", doc="what to do about it, for the platform that the traces show", prose=True),
        Column("worst_rank", "int64", doc="that loses most, -1 for the whole job"),
        Column("ts_ns", "int64", "ns", "where it loses most, since its trace's first event; -1 if unknown"),
        Column("detector", "category", doc="detector that measured it"),
        Column("explained_by", "category", doc="for a symptom: detector of the cause with most of its time"),
        Column("evidence_command", "str", doc="step with most of this time", folded=True),
        Column("replay_command", "str", doc="writes scripts of the calls that run at that time", folded=True),
        Column("whatif_command", "str", doc="projects the run without it", folded=True),
        Column("location", "str", doc="of its longest stretch", folded=True),
    ),
    kind="entries",
    doc="Ranked by the step time that each saves on top of those above. Savings come from a replay of the "
        "run under the finding's scenario, for serving engines over all steps together; under "
        f"{SHOWN:.1%} hidden. Upper bounds share the time that replayed findings leave.",
)  # fmt: skip

MEASUREMENTS = Schema(
    "Detector measurements",
    (
        Column("rank", "int64", doc="-1 for the whole job"),
        Column("detector", "category", doc="'' for the mean step"),
        Column("measure", "category", doc="what was measured; estimate: of the saving, per step"),
        Column("value", "float64", doc="value of the measure, in `unit`"),
        Column("unit", "category", doc="unit of the value"),
    ),
    detail=True,
)

CHECKS = Schema(
    "Checks",
    (
        Column("detector", "category", doc="name, as in `tracelens list detectors`"),
        Column("signature", "str", doc="what the detector looks for", prose=True),
        Column("ranks", "int64", "count", "ranks that show the signature"),
        Column("estimate_ns", "int64", "ns", "of the saving by the detector, mean of the ranks"),
        Column("saving_ns", "int64", "ns", "if only this is fixed, mean of the ranks"),
        Column("basis", "category", doc="of the saving; '' where nothing is detected"),
        Column("scenario", "str", doc="scenario that was replayed, '' for none"),
        Column("verdict", "str", doc="the finding, or why there is none", prose=True),
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
        recording: what commands need of the trace.
        steps: number of whole steps.
    """

    rank: int
    origin: int
    step_ns: float
    outcomes: dict[str, Outcome]
    recording: Recording
    steps: int = 1


def rank_detections(
    trace: Trace, *, device: str | None = None, device_file: str | None = None
) -> RankDetections:
    """What the detectors that look at single ranks find on this one; options as for `findings`."""
    context = RankContext(trace, choose_device(device, device_file) or own_device(trace))
    outcomes = {name: item.of_rank(context) for name, item in DETECTORS.items() if not item.needs}
    origin = int(trace.arrays.start.min())
    recording = Recording.of(trace, outcomes, device, device_file)
    return RankDetections(trace.meta.rank, origin, context.step_ns, outcomes, recording, context.steps)


TABLES = {"findings": FINDINGS, "measurements": MEASUREMENTS, "checks": CHECKS}


@analyzer(
    "findings",
    title="What to fix first",
    order=0,
    part=rank_detections,
    shared=("projector",),
    needs=NEEDS,
    tables=TABLES,
)
def findings(
    ranks: Sequence[RankDetections],
    projector: Projector | Skip,
    results: Mapping[str, Result],
    *,
    unprofiled_step_ms: float | None = None,
) -> Result:
    """What should be fixed first, what does it save, and how?

    Reading:
        Start at the top: rows are ordered by what each saves on top of those above it. Compare the saving
        with its range; an upper bound says how much there is to gain at most. `checks` says what every
        detector saw, or why it reports nothing.

    Limits:
        Savings are projections of the recorded run. Detectors know the signatures that the page of detectors
        lists, and no others.

    Args:
        ranks: from `rank_detections`, whose options are `device` and `device_file`, as for `roofline`.
        projector: replays a step of the run under scenarios, or says why it cannot.
        results: of the analyzers that detectors read.
        unprofiled_step_ms: a step without the profiler, from which the projector starts.

    Returns:
        tables `findings`, `measurements` and `checks`. meta: the replayed step and its base_ns.

    Raises:
        TracelensError: no such device, or the file is no device file.
    """
    outcomes: dict[str, Mapping[int, Detection] | str] = {
        name: item.of_run(results) if item.needs else _together(name, ranks)
        for name, item in DETECTORS.items()
    }
    replays = Replays(projector, sum(rank.step_ns for rank in ranks) / len(ranks))
    candidates = _sized(outcomes, ranks, replays)
    shown = {item.detector.name: item for item in candidates if item.saving.ns > SHOWN * replays.base_ns}
    commands = Commands({rank.rank: rank.recording for rank in ranks}, unprofiled_step_ms)
    rows = [
        _row(position, finding, ranks, replays, commands, results["completeness"])
        for position, finding in enumerate(ranked(list(shown.values()), replays, len(ranks)), start=1)
    ]
    tables = {
        "findings": FINDINGS.from_rows(rows),
        "measurements": MEASUREMENTS.from_rows([*_steps(ranks), *_measured(candidates)]),
        "checks": CHECKS.from_rows(_checked(outcomes, candidates, shown)),
    }
    skips = [] if rows else [Skip("findings", f"nothing costs more than {SHOWN:.1%} of a step; see `checks`")]
    reasons = [*outcomes.values(), *(reason for rank in ranks for reason in rank.outcomes.values())]
    failures = {reason.part: reason for reason in reasons if isinstance(reason, Failure)}
    skips += [Skip(part, failure) for part, failure in failures.items()]
    return Result("findings", "", tables, skips=(*skips, *replays.skips), meta=replays.meta)


def _sized(
    outcomes: Mapping[str, Mapping[int, Detection] | str],
    ranks: Sequence[RankDetections],
    replays: Replays,
) -> list[Candidate]:
    """What was detected, replayed where the estimate is worth it."""
    steps = {rank.rank: StepTime(rank.step_ns, rank.steps) for rank in ranks}
    candidates = [
        Candidate.of(item, detections, steps, replays.base_ns, replays.step_count)
        for name, item in DETECTORS.items()
        if not isinstance(detections := outcomes[name], str)
    ]
    return [
        replays.sized(item) if item.saving.ns > max(SHOWN * replays.base_ns, 0) else item
        for item in candidates
    ]


def _together(name: str, ranks: Sequence[RankDetections]) -> Mapping[int, Detection] | str:
    """The detections of all ranks, or why no rank has one."""
    outcomes = {rank.rank: rank.outcomes[name] for rank in ranks}
    detections = {rank: outcome for rank, outcome in outcomes.items() if isinstance(outcome, Detection)}
    return detections or "; ".join(dict.fromkeys(str(reason) for reason in outcomes.values()))


def _row(
    position: int,
    finding: Ranked,
    ranks: Sequence[RankDetections],
    replays: Replays,
    commands: Commands,
    doubts: Result,
) -> dict[str, Any]:
    candidate, cause, saving = finding.candidate, finding.cause, finding.candidate.saving
    worst, by_rank = candidate.worst, {rank.rank: rank for rank in ranks}
    detection = doubted(trusted(candidate, replays), worst, doubts)
    prefix = f"rank {worst}: " if len(ranks) > 1 and worst != JOB else ""
    at_ns = -1
    if worst in by_rank and detection.where.total:
        longest = int(np.argmax(detection.where.end - detection.where.start))
        at_ns = int(detection.where.start[longest]) - by_rank[worst].origin
    row = {
        "position": position,
        "finding": candidate.detector.title,
        "additional_ns": round(finding.additional_ns),
        "fraction": min(finding.additional_ns / max(replays.base_ns, 1), 1.0),
        "saving_ns": round(saving.ns),
        "low_ns": round(saving.low_ns),
        "high_ns": round(saving.high_ns),
        "basis": saving.basis,
        "scenario": saving.scenario,
        "confidence": detection.confidence,
        "evidence": f"{prefix}{detection.evidence}{_explained(finding)}",
        "upper_bound": saving.upper_bound,
        "remedy": remedy(
            candidate.detector.name,
            commands.platform,
            candidate.detector.remedy,
            in_graphs=candidate.detections[worst].in_graphs,
        ),
        "worst_rank": worst,
        "ts_ns": at_ns,
        "detector": candidate.detector.name,
        "explained_by": cause.detector.name if cause else "",
    }
    return row | commands.of(candidate.detector.name, candidate.detections, worst, saving.scenario)


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
        for measure, value, unit in (*detection.quantities, ("estimate", float(detection.saving_ns), "ns"))
    ]


def _checked(
    outcomes: Mapping[str, Mapping[int, Detection] | str],
    candidates: Sequence[Candidate],
    shown: Mapping[str, Candidate],
) -> list[dict[str, Any]]:
    by_name = {candidate.detector.name: candidate for candidate in candidates}
    return [
        {
            "detector": name,
            "signature": item.doc,
            "ranks": 0 if isinstance(outcome := outcomes[name], str) else len(outcome),
            **_sizes(by_name.get(name)),
            "verdict": outcome if isinstance(outcome, str) else _verdict(by_name[name], name in shown),
        }
        for name, item in DETECTORS.items()
    ]


def _sizes(candidate: Candidate | None) -> dict[str, Any]:
    """Columns of a check: what was estimated and what the replay gave."""
    if candidate is None:
        return {"estimate_ns": 0, "saving_ns": 0, "basis": "", "scenario": ""}
    saving = candidate.saving
    return {
        "estimate_ns": round(candidate.estimated_ns),
        "saving_ns": round(saving.ns),
        "basis": saving.basis,
        "scenario": saving.scenario,
    }


def _verdict(candidate: Candidate, is_finding: bool) -> str:
    """Whether a detection is a finding, and if not, why."""
    saving = candidate.saving
    if is_finding:
        return "finding"
    if not saving.scenario:
        return f"below {SHOWN:.1%} of a step"
    return (
        f"estimated at {duration(candidate.estimated_ns)}, but replayed under {saving.scenario} the step "
        f"gains only {duration(saving.ns)}, below {SHOWN:.1%} of it: it waits for something else"
    )

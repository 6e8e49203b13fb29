"""What to fix first: detections ranked by the time that fixing them saves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
from msgspec import Struct

from tracelens.analysis import analyzer
from tracelens.analysis.common import choose_device, own_device
from tracelens.analysis.completeness import doubtful_time, doubts_within
from tracelens.analysis.serving import rank_steps
from tracelens.errors import TracelensError, UnknownName
from tracelens.findings.actions import Commands, CommandSource, longest_start
from tracelens.findings.detectors import (
    DETECTORS,
    JOB,
    Confidence,
    Detection,
    Detections,
    Detector,
    Outcome,
    Quantity,
    RankContext,
)
from tracelens.findings.remedies import remedy
from tracelens.guard import Failure, guard
from tracelens.table import Column, Result, Schema, Skip, Table
from tracelens.trace import Trace, Union, both, steps_of
from tracelens.units import duration
from tracelens.what_if import (
    DOUBTFUL,
    Projector,
    ReplayedStep,
    ScenarioRequest,
    doubt,
    parse_request,
    reliability_warning,
)

SHOWN = 0.005
"""Share of a step that a saving exceeds to be a finding: a trade-off, a list with all of them is long."""

LOW_DOUBT, MEDIUM_DOUBT = 0.5, 0.1
"""From this share of its time in doubtful stretches on, a finding has at most this confidence: a trade-off,
half of the time decides, a tenth matters."""

UNEXPLAINED_SHARE = 1 / 40
"""Up to this unexplained share of the step the graph explains it; recordings of all ranks and several steps
stay within."""

CAUSE_SHARE = 0.5
"""A cause that overlaps more than this share of a symptom's time explains it: most of it."""

OWN_TIME = 0.05
"""A saving that exceeds the time that its evidence is about by more than this share says where the rest lies:
means over ranks and steps differ by as much."""

NEEDS = ("collectives", "completeness", "moe", "pipeline", "serving", "steps", "stragglers")
"""Analyzers whose results detectors read, and the doubts about the recording."""
FINDINGS = Schema(
    "What to fix first",
    (
        Column("position", "int64", "count", "1 is to fix first"),
        Column("finding", "str", doc="what happens"),
        Column("additional_ns", "int64", "ns", "saving once the findings above are fixed; of a symptom, "
                                               "once all its causes are; mean of the ranks"),
        Column("fraction_of_step", "float64", "fraction", "of the step"),
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
        Column("fix", "str", doc="the remedy in a few words, as the headline has it", prose=True),
        Column("remedy", "str", doc="what to do about it, for the platform that the traces show", prose=True),
        Column("worst_rank", "int64", doc="that loses most, missing for the whole job", absent=-1),
        Column("ts_ns", "int64", "ns", "where it loses most, since its trace's first event", absent=-1),
        Column("detector", "category", doc="detector that measured it"),
        Column("explained_by", "category", doc="for a symptom: detector of the cause with most of its time"),
        Column("evidence_command", "str", doc="step with most of this time", folded=True),
        Column("replay_command", "str", doc="writes scripts of the calls that run at that time", folded=True),
        Column("whatif_command", "str", doc="projects the run without it", folded=True),
        Column("location", "str", doc="of its longest stretch", folded=True),
    ),
    kind="entries",
    doc="Ranked by the step time that each saves on top of those above, a symptom on top of all causes. "
        "Savings come from a replay of the run under the finding's scenario, for serving engines over all "
        f"steps together; under {SHOWN:.1%} hidden. Upper bounds share what the others leave.",
)  # fmt: skip
FACTS = Schema(
    "Beside the savings",
    (
        Column(
            "fact", "str", doc="what is wrong, or what the recording cannot show and what would", prose=True
        ),
        Column("worst_rank", "int64", doc="that shows most of it, missing for the whole job", absent=-1),
        Column("detector", "category", doc="that measured it; '' for the recording"),
    ),
    kind="entries",
    doc="What is wrong although mending it saves next to no time in this run, and what it cannot show.",
)
CANDIDATES = Schema(
    "Candidates for other kernels",
    (
        Column("rank", "int64", doc="that ran it"),
        Column("op", "str", doc="op or kernel that is slow for its size"),
        Column("shapes", "str", doc="of its arguments"),
        Column("dtype", "category", doc="in which it computes"),
        Column("kernel", "str", doc="in which its longest call spends most time"),
        Column("count", "float64", "count", "calls per step"),
        Column("dur_ns", "float64", "ns", "of a call"),
        Column("reachable_ns", "float64", "ns", "that a call needs at the rates that the device reaches"),
        Column("lost_ns", "float64", "ns", "time beyond that, per step"),
        Column("fraction_of_step", "float64", "fraction", "of the step that is lost"),
        Column(
            "flops_per_s", "float64", "flops/s", "that a call reaches, 0 where it computes next to nothing"
        ),
        Column("bytes_per_s", "float64", "bytes/s", "that a call reaches"),
    ),
    detail=True,
    doc="What the finding `slow_kernels` is about, for whoever writes or chooses kernels; most lost first. "
    "`tracelens replay --finding slow_kernels` writes the calls as scripts.",
)
MEASUREMENTS = Schema(
    "Detector measurements",
    (
        Column("rank", "int64", doc="missing for the whole job", absent=-1),
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


class RankDetections(Struct, frozen=True):
    """What the detectors found on one rank."""

    rank: int  # of the trace
    origin: int  # time of its first event, ns
    step_ns: float  # mean duration of a step
    outcomes: dict[str, Outcome]  # by detector
    recording: CommandSource  # what commands need of the trace
    steps: int = 1  # number of whole steps
    lacking: tuple[str, ...] = ()  # what the recording cannot show, with what would
    candidates: tuple[tuple[Any, ...], ...] = ()  # rows of CANDIDATES


TABLES = {
    "findings": FINDINGS,
    "facts": FACTS,
    "candidates": CANDIDATES,
    "measurements": MEASUREMENTS,
    "checks": CHECKS,
}


class RankedFinding(Struct, frozen=True):
    """A candidate in its position."""

    candidate: SizedFinding  # that is ranked
    additional_ns: float  # what it saves when those above it are fixed; at most its own saving
    # above it, that overlaps most of a symptom's time; None where none does
    cause: SizedFinding | None = None
    explained: float = 0.0  # share of the symptom's time that is the cause's


class Saving(NamedTuple):
    """Step time that a remedy saves by itself."""

    ns: float  # mean of the ranks
    low_ns: float  # at least
    high_ns: float  # at most
    scenario: str = ""  # whose replay gives it, "" if it is the detector's estimate
    upper_bound: str = ""  # why it is an upper bound, "" if the replay can be trusted

    @property
    def basis(self) -> str:
        """Whether it is replayed or an upper bound."""
        return "upper bound" if self.upper_bound or not self.scenario else "replayed"

    @classmethod
    def estimated(cls, ns: float, reason: str) -> Saving:
        """A detector's estimate, which is an upper bound, and why there is no replay."""
        return cls(ns, 0.0, ns, "", reason)


class StepTime(Struct, frozen=True):
    """How long the steps of a rank are."""

    dur_ns: float  # mean of its steps
    steps: int  # whole ones in the recording


class SizedFinding(NamedTuple):
    """What a detector found on all ranks."""

    detector: Detector  # that found it
    detections: Mapping[int, Detection]  # by rank, or JOB
    estimate_ns: Mapping[int, float]  # what the detector expects to save, by rank, in the replayed steps
    lost_ns: Mapping[int, float]  # when the time is lost that it is about, by rank, in the replayed steps
    estimated_ns: float  # mean of the ranks
    saving: Saving  # of the replay of its scenario, or that estimate

    @classmethod
    def of(
        cls,
        detector: Detector,
        detections: Mapping[int, Detection],
        ranks: Mapping[int, StepTime],
        base_ns: float,
        step_count: int = 1,
    ) -> SizedFinding:
        """A candidate whose saving is the detector's estimate.

        An estimate is at most the time that it is about, and at most the step.

        Args:
            detector: that found it.
            detections: by rank, or JOB.
            ranks: the steps of all ranks.
            base_ns: the step, or the steps, that savings are of.
            step_count: number of these steps.
        """
        any_rank = next(iter(ranks.values()))
        estimate_ns, lost_ns = {}, {}
        for rank, detection in detections.items():
            step = ranks.get(rank, any_rank)
            lost_ns[rank] = detection.where.total / step.steps * step_count
            most = min(lost_ns[rank] or float("inf"), step.dur_ns * step_count)
            estimate_ns[rank] = min(detection.saving_ns * step_count, most)
        estimated_ns = min(mean_of_ranks(estimate_ns, len(ranks)), base_ns)
        saving = Saving.estimated(estimated_ns, "")
        return cls(detector, detections, estimate_ns, lost_ns, estimated_ns, saving)

    @property
    def worst(self) -> int:
        """The rank that loses most, or JOB."""
        return max(self.estimate_ns, key=lambda rank: self.estimate_ns[rank])

    @property
    def request(self) -> str:
        """The scenario that its remedy is, "" if none."""
        own = self.detections[self.worst].scenario
        return self.detector.scenario if own is None else own

    @property
    def unreplayed(self) -> str:
        """Why nothing is replayed where it requests no scenario."""
        return TOO_MUCH.format(self.detector.scenario) if self.detector.scenario else NO_SCENARIO


def mean_of_ranks(values: Mapping[int, float], ranks: int) -> float:
    """Mean over the ranks, those without a value as 0; what is of the job as a whole counts as it is."""
    return sum(values.values()) / (1 if JOB in values else ranks)


Addition = tuple[SizedFinding, float]
"""A candidate, and what it saves when others are fixed, ns."""
T = TypeVar("T")
SUBJECT = "savings by replay"
NO_SCENARIO = "no scenario models the remedy"
TOO_MUCH = "scenario {} would remove more than this finding is about"
NOT_REGISTERED = "there is no scenario {}"
HIDDEN = "{}: the recorded step waits for its host, which the profiler slows; by how much is unknown"
UNRELIABLE = "the run's dependency graph does not explain the step"


class Replays:
    """Step times under scenarios, each replayed once."""

    def __init__(self, projector: Projector | Skip, step_ns: float) -> None:
        """Prepare replays.

        Args:
            projector: of the run, or why it has none.
            step_ns: mean duration of a step, for a run without a projector.
        """
        self.skips: list[Skip] = []  # why there are no replays, or why they are unreliable
        self.base_ns = step_ns  # the step as recorded, mean of the ranks
        self.step_count = 1  # number of recorded steps in it: 1, or all of a serving engine
        self.meta: dict[str, str | int] = {}  # which step that is
        self._projector: Projector | None = None
        # Of several scenarios together by their text, which a user can replay.
        self._step_ns: dict[str, float | None] = {"": step_ns}
        if isinstance(projector, Skip):
            self.skips.append(projector)
            return
        self._projector = projector
        self.base_ns, self.step_count = float(projector.base_ns), projector.step_count
        self._step_ns[""] = self.base_ns
        self.meta = {"step": projector.window.label, "base_ns": projector.base_ns}

    @cached_property
    def doubt(self) -> float:
        """Share of the step that the graph does not explain, 1 where that is unknown; worked out if used."""
        if self._projector is None:
            return 1.0
        explained: Table | Failure | None = self._projector.explained
        if explained is None:
            explained = guard("trust in the graph", ReplayedStep(self._projector).explained)
        if isinstance(explained, Failure):
            self.skips.append(Skip(SUBJECT, explained))
            return 1.0
        if warning := reliability_warning(explained):
            self.skips.append(Skip(SUBJECT, warning))
        return doubt(explained)

    def sized(self, candidate: SizedFinding) -> SizedFinding:
        """A candidate with what the replay of its scenario saves; where there is none, with its estimate."""
        saving, scenario = candidate.saving, candidate.request
        replayed = self._asked(scenario, _saving) if scenario else candidate.unreplayed
        if isinstance(replayed, str):
            return candidate._replace(saving=Saving.estimated(saving.ns, replayed))
        self._step_ns[scenario] = self.base_ns - replayed.ns
        hidden = replayed.ns <= SHOWN * self.base_ns < min(replayed.high_ns, saving.ns)
        if hidden and self._projector is not None and self._projector.share.known_ns is None:
            # What the profiler adds to the host's time does not decide that nothing is saved.
            reason = HIDDEN.format(scenario)
            return candidate._replace(saving=Saving.estimated(min(replayed.high_ns, saving.ns), reason))
        reason = UNRELIABLE if self.doubt > DOUBTFUL else ""
        return candidate._replace(saving=replayed._replace(upper_bound=reason))

    def gain_ns(self, fixed: Sequence[str], scenario: str) -> float:
        """What a scenario saves of the step under others; 0 if these leave nothing that it changes."""
        before, after = self._together(fixed), self._together([*fixed, scenario])
        return 0.0 if before is None or after is None else before - after

    def _together(self, scenarios: Sequence[str]) -> float | None:
        """The step under several scenarios together, None if they do not combine."""
        text = "+".join(dict.fromkeys(scenarios))
        if text not in self._step_ns:
            step_ns = self._asked(text, Projector.step_ns)
            self._step_ns[text] = None if isinstance(step_ns, str) else max(float(step_ns), 0.0)
        return self._step_ns[text]

    def _asked(self, scenario: str, question: Callable[[Projector, ScenarioRequest], T]) -> T | str:
        """What a projector says to a scenario, or why it cannot be replayed."""
        projector = self._projector
        if projector is None:
            return self.skips[0].reason
        try:
            answer = guard(f"scenario {scenario}", lambda: question(projector, parse_request(scenario)))
        except UnknownName:
            return NOT_REGISTERED.format(scenario)
        except TracelensError as why:
            return f"{scenario}: {why}"
        if isinstance(answer, Failure):
            self.skips.append(Skip(f"scenario {scenario}", answer))
        return answer


def rank_detections(
    trace: Trace, *, device: str | None = None, device_file: str | None = None
) -> RankDetections:
    """What the detectors that look at single ranks find on this one; options as for `findings`."""
    context = RankContext(trace, choose_device(device, device_file) or own_device(trace))
    outcomes = {name: item.of_rank(context) for name, item in DETECTORS.items() if not item.needs}
    origin = int(trace.arrays.start.min())
    recording = CommandSource.of(trace, outcomes, device, device_file)
    candidates = guard("candidates for other kernels", lambda: tuple(_candidates(context)))
    return RankDetections(
        rank=trace.meta.rank,
        origin=origin,
        step_ns=context.step_ns,
        outcomes=outcomes,
        recording=recording,
        steps=context.steps,
        lacking=tuple(_lacking(context)),
        # Where they fail, so does the detector of slow kernels, which says so.
        candidates=() if isinstance(candidates, Failure) else candidates,
    )


def _lacking(context: RankContext) -> Iterator[str]:
    """What the recording of a rank cannot show, and what would."""
    if not len(context.work.event):
        return
    # Engines mark their steps by labels of their own.
    steps = context.steps if steps_of(context.trace).marked else len(rank_steps(context.trace).steps)
    if not steps:
        yield "no steps are marked, so all of it counts as one: call the profiler's step() after each step"
    elif steps == 1:
        yield "one step is recorded, so what recurs is not known: record three"
    shapes = context.trace.tables["ops"].columns["shapes"]
    if not any(text.strip("[], ") for text in shapes.values):
        yield (
            "no shapes are recorded, so expert loops, losses and slow kernels were not looked for: "
            "record_shapes=True"
        )
    elif context.device is None and not context.trace.meta.cpu_only:
        yield "the device is not known, so slow kernels were not looked for: give --device"


def _candidates(context: RankContext) -> Iterator[tuple[Any, ...]]:
    """Rows of CANDIDATES for one rank."""
    slow, work = context.slow, context.trace.work
    share = slow.share_within(context.rows, work)
    for kind, item in enumerate(slow.items):
        if not share[kind]:
            continue
        own = slow.rows[slow.kind == kind]
        dur_ns = float(slow.dur_ns[kind] / slow.calls[kind])
        lost_ns = context.per_step(float(slow.lost_ns[kind] * share[kind]))
        cost = item.cost
        yield (
            context.trace.meta.rank,
            item.name,
            item.shapes,
            cost.dtype,
            work.names[work.name[own[work.dur[own].argmax()]]],
            context.per_step(float(slow.calls[kind] * share[kind])),
            dur_ns,
            float(slow.reachable_ns[kind]),
            lost_ns,
            lost_ns / max(context.step_ns, 1),
            cost.flops / dur_ns * 1e9,
            (cost.read_bytes + cost.write_bytes) / dur_ns * 1e9,
        )


@analyzer(
    "findings",
    title="What to fix first",
    order=0,
    part=rank_detections,
    slow=True,
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
        tables `findings`, `facts`, `candidates`, `measurements` and `checks`. meta: the replayed step and its
        base_ns.

    Raises:
        TracelensError: no such device, or the file is no device file.
    """
    outcomes: dict[str, Detections] = {}
    for name, item in DETECTORS.items():
        if item.needs:
            outcomes[name] = item.of_run(results)
            continue
        of_ranks = {rank.rank: rank.outcomes[name] for rank in ranks}
        detections = {rank: outcome for rank, outcome in of_ranks.items() if isinstance(outcome, Detection)}
        outcomes[name] = detections or "; ".join(dict.fromkeys(map(str, of_ranks.values())))
    replays = Replays(projector, sum(rank.step_ns for rank in ranks) / len(ranks))
    least_ns = SHOWN * replays.base_ns
    steps = {rank.rank: StepTime(rank.step_ns, rank.steps) for rank in ranks}
    sized: dict[str, SizedFinding] = {}
    for name, item in DETECTORS.items():
        if not isinstance(outcome := outcomes[name], str):
            estimate = SizedFinding.of(item, outcome, steps, replays.base_ns, replays.step_count)
            # Replays take time: only where the estimate is worth it.
            sized[name] = replays.sized(estimate) if estimate.saving.ns > max(least_ns, 0) else estimate
    shown = {name: finding for name, finding in sized.items() if finding.saving.ns > least_ns}
    commands = Commands({rank.rank: rank.recording for rank in ranks}, unprofiled_step_ms)
    rows = [
        _row(position, finding, ranks, replays, commands, results["completeness"])
        for position, finding in enumerate(ranked(list(shown.values()), replays, len(ranks)), start=1)
    ]
    facts = [
        (detection.fact, rank, name)
        for name, finding in sized.items()
        if name not in shown and (detection := finding.detections[rank := finding.worst]).fact
    ]
    facts += [(text, JOB, "") for text in dict.fromkeys(text for rank in ranks for text in rank.lacking)]
    # What all figures are of, a mean step of each rank; then the figures of the detections.
    measurements: list[tuple[Any, ...]] = [(rank.rank, "", "step", rank.step_ns, "ns") for rank in ranks]
    for name, finding in sized.items():
        for number, detection in sorted(finding.detections.items()):
            estimated = Quantity("estimate", float(detection.saving_ns), "ns")
            measurements += [(number, name, *quantity) for quantity in (*detection.quantities, estimated)]
    checks: list[tuple[Any, ...]] = []
    for name, item in DETECTORS.items():
        if isinstance(outcome := outcomes[name], str):
            checks.append((name, item.doc, 0, 0, 0, "", "", outcome))
            continue
        estimated_ns, saving = sized[name].estimated_ns, sized[name].saving
        told = any(detection.fact for detection in sized[name].detections.values())
        verdict = "told beside the savings" if told else f"below {SHOWN:.1%} of a step"
        if name in shown:
            verdict = "finding"
        elif saving.scenario:
            verdict = (
                f"estimated at {duration(estimated_ns)}, but replayed under {saving.scenario} the step gains "
                f"only {duration(saving.ns)}, below {SHOWN:.1%} of it: it waits for something else"
            )
        sizes = round(estimated_ns), round(saving.ns), saving.basis, saving.scenario
        checks.append((name, item.doc, len(outcome), *sizes, verdict))
    tables = {
        "findings": FINDINGS.from_rows(rows),
        "facts": FACTS.from_rows(facts),
        "candidates": CANDIDATES.from_rows(row for rank in ranks for row in rank.candidates),
        "measurements": MEASUREMENTS.from_rows(measurements),
        "checks": CHECKS.from_rows(checks),
    }
    skips = [] if rows else [Skip("findings", f"nothing costs more than {SHOWN:.1%} of a step; see `checks`")]
    reasons = [*outcomes.values(), *(reason for rank in ranks for reason in rank.outcomes.values())]
    failures = {reason.part: reason for reason in reasons if isinstance(reason, Failure)}
    skips += [Skip(part, failure) for part, failure in failures.items()]
    return Result("findings", "", tables, skips=(*skips, *replays.skips), meta=replays.meta)


def _row(
    position: int,
    finding: RankedFinding,
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
        at_ns = longest_start(detection.where) - by_rank[worst].origin
    explained = ""
    if cause is not None:
        title = cause.detector.title
        explained = f"; {finding.explained:.0%} of this time lies within another finding: {title}"
    rest = ""
    lost_ns = mean_of_ranks(candidate.lost_ns, len(ranks))
    if 0 < lost_ns * (1 + OWN_TIME) < saving.ns:
        rest = (
            f"; of the {duration(saving.ns)} saved {duration(lost_ns)} lie in this time, "
            f"{duration(saving.ns - lost_ns)} in gaps and waiting that go with it"
        )
    row = {
        "position": position,
        "finding": detection.title or candidate.detector.title,
        "additional_ns": round(finding.additional_ns),
        "fraction_of_step": min(finding.additional_ns / max(replays.base_ns, 1), 1.0),
        "saving_ns": round(saving.ns),
        "low_ns": round(saving.low_ns),
        "high_ns": round(saving.high_ns),
        "basis": saving.basis,
        "scenario": saving.scenario,
        "confidence": detection.confidence,
        "evidence": f"{prefix}{detection.evidence}{rest}{explained}",
        "upper_bound": saving.upper_bound,
        "remedy": remedy(
            candidate.detector,
            commands.platform,
            in_graphs=candidate.detections[worst].in_graphs,
            cause=detection.cause,
        ),
        "fix": detection.fix or candidate.detector.fix,
        "worst_rank": worst,
        "ts_ns": at_ns,
        "detector": candidate.detector.name,
        "explained_by": cause.detector.name if cause else "",
    }
    return row | commands.of(candidate.detector, candidate.detections, worst, saving.scenario)


def ranked(candidates: Sequence[SizedFinding], replays: Replays, ranks: int) -> Iterator[RankedFinding]:
    """The candidates by what they add, most first; a symptom first only if it outweighs all causes."""
    replayed = _replayed([candidate for candidate in candidates if candidate.saving.scenario], replays)
    bounds = _bounds(
        [candidate for candidate in candidates if not candidate.saving.scenario],
        replayed,
        replays.base_ns,
        ranks,
    )
    above: list[SizedFinding] = []
    for candidate, additional_ns in _in_order([*replayed, *bounds]):
        causes = explaining(candidate, above) if candidate.detector.symptom else []
        explained, cause = causes[0] if causes else (0.0, None)
        yield RankedFinding(candidate, additional_ns, cause, explained)
        if not candidate.detector.symptom:
            above.append(candidate)


def _in_order(additions: Sequence[Addition]) -> list[Addition]:
    """What adds most first; but a symptom first of all only if it adds more than all causes together."""
    result = sorted(additions, key=_precedence)
    causes = [addition for addition in result if not addition[0].detector.symptom]
    if causes and result[0][1] <= sum(additional_ns for _, additional_ns in causes):
        result.remove(causes[0])
        result.insert(0, causes[0])
    return result


def _precedence(addition: Addition) -> tuple[float, bool, bool, float]:
    candidate, additional_ns = addition
    saving = candidate.saving
    return -additional_ns, candidate.detector.symptom, not saving.scenario, -saving.ns


def _replayed(candidates: Sequence[SizedFinding], replays: Replays) -> list[Addition]:
    """Candidates with scenarios: each time the one that adds most to those before it, symptoms after causes.

    What a candidate adds is taken to shrink as others are fixed, so it is replayed again only when it would
    be next. Where two of them help each other, the second counts for no more than it saves by itself.
    """
    result: list[Addition] = []
    most_ns = {id(candidate): candidate.saving.ns for candidate in candidates}
    # The scenarios of those that add something, and how many they were when a candidate was last replayed.
    fixed: list[str] = []
    fixed_then = dict.fromkeys(most_ns, 0)
    for symptoms in (False, True):
        remaining = [candidate for candidate in candidates if candidate.detector.symptom == symptoms]
        while remaining:
            candidate = min(remaining, key=lambda item: _precedence((item, most_ns[id(item)])))
            if fixed_then[id(candidate)] == len(fixed):
                result.append((candidate, most_ns[id(candidate)]))
                remaining.remove(candidate)
                if most_ns[id(candidate)] > 0:
                    fixed.append(candidate.saving.scenario)
                continue
            gain_ns = replays.gain_ns(fixed, candidate.saving.scenario)
            most_ns[id(candidate)] = max(min(most_ns[id(candidate)], gain_ns), 0.0)
            fixed_then[id(candidate)] = len(fixed)
    return result


def _bounds(
    candidates: Sequence[SizedFinding], replayed: Sequence[Addition], base_ns: float, ranks: int
) -> list[Addition]:
    """What upper bounds add to all replayed findings; together no more than these leave of the step."""

    def of_replayed(where: Union, rank: int) -> float:
        """The share of some time of a rank that the replayed findings save."""
        saved_ns = sum(
            overlap_ns(where, other.detections[rank].where)
            * min(additional_ns / max(mean_of_ranks(other.lost_ns, ranks), 1), 1.0)
            for other, additional_ns in replayed
            if rank in other.detections
        )
        return min(saved_ns / max(where.total, 1), 1.0)

    rest = {  # share of the time of each candidate and rank that these leave
        id(candidate): {
            rank: 1 - of_replayed(detection.where, rank) for rank, detection in candidate.detections.items()
        }
        for candidate in candidates
    }
    claimed: dict[int, Union] = {}
    left_ns = max(base_ns - sum(additional_ns for _, additional_ns in replayed), 0.0)
    result: list[Addition] = []
    for symptoms in (False, True):
        remaining = [candidate for candidate in candidates if candidate.detector.symptom == symptoms]
        while remaining:
            added: list[Addition] = []
            for candidate in remaining:
                # What its estimate has left of the time that others have not claimed.
                free = {}
                for rank, detection in candidate.detections.items():
                    where, total = detection.where, max(detection.where.total, 1)
                    of_bounds = overlap_ns(where, claimed[rank]) if rank in claimed else 0
                    free[rank] = (
                        candidate.estimate_ns[rank] * (1 - of_bounds / total) * rest[id(candidate)][rank]
                    )
                added.append((candidate, min(mean_of_ranks(free, ranks), candidate.saving.ns)))
            candidate, additional_ns = min(added, key=_precedence)
            remaining.remove(candidate)
            result.append((candidate, min(additional_ns, left_ns)))
            left_ns -= result[-1][1]
            for rank, detection in candidate.detections.items():
                claimed[rank] = both(claimed.get(rank, detection.where), detection.where)
    return result


def trusted(candidate: SizedFinding, replays: Replays) -> Detection:
    """The detection on the worst rank, with the confidence in its saving.

    An upper bound has low confidence; a replay that of the detector, high only where the graph explains the
    step.
    """
    detection = candidate.detections[candidate.worst]
    if candidate.saving.basis != "replayed":
        return detection._replace(confidence="low")
    if detection.confidence == "high" and replays.doubt > UNEXPLAINED_SHARE:
        return detection._replace(confidence="medium")
    return detection


def doubted(detection: Detection, rank: int, doubts: Result) -> Detection:
    """A detection with less confidence where its time lies in doubtful stretches.

    Args:
        detection: on the rank, or of the JOB.
        rank: that loses most.
        doubts: of the analyzer `completeness`.
    """
    where = detection.where
    if rank == JOB or not where.total:
        # The share of a job that is in doubt is that of its worst rank.
        table = doubts.data.get("doubts")
        if table is None or not len(table):
            return detection
        of_rank = np.ones(len(table), dtype=bool) if rank == JOB else table.array("rank") == rank
        share = float(table.array("fraction_of_recorded_time")[of_rank].max(initial=0.0))
        names = sorted(set(table.texts("doubt", of_rank)))
    else:
        share = int(doubtful_time(doubts, rank).covered(where.start, where.end).sum()) / where.total
        names = doubts_within(doubts, rank, where) if share else []
    if share < MEDIUM_DOUBT:
        return detection
    capped: Confidence = "low" if share >= LOW_DOUBT or detection.confidence == "low" else "medium"
    why = f"{share:.0%} of this time is in doubt: {', '.join(names)} (see completeness)"
    return detection._replace(confidence=capped, evidence=f"{detection.evidence}; {why}")


def explaining(symptom: SizedFinding, causes: list[SizedFinding]) -> list[tuple[float, SizedFinding]]:
    """The causes that overlap most of a symptom's time on all ranks, with that share, largest first."""
    total = sum(detection.where.total for detection in symptom.detections.values())
    shares = [
        (
            sum(
                overlap_ns(detection.where, cause.detections[rank].where)
                for rank, detection in symptom.detections.items()
                if rank in cause.detections
            )
            / max(total, 1),
            cause,
        )
        for cause in causes
    ]
    return sorted((pair for pair in shares if pair[0] > CAUSE_SHARE), key=lambda pair: -pair[0])


def overlap_ns(where: Union, other: Union) -> int:
    """How long both are at once, ns."""
    return int(other.covered(where.start, where.end).sum())


def _saving(projector: Projector, request: ScenarioRequest) -> Saving:
    """What a scenario saves; low to high as that of a projection, of each replay against its own base."""
    projection = projector.project(request)
    saved_ns = projection.savings_ns(projector.unchanged)
    low_ns, high_ns = (max(float(ns), 0.0) for ns in (min(saved_ns), max(saved_ns)))
    return Saving(float(projector.base_ns - projection.step_ns), low_ns, high_ns, request.text)

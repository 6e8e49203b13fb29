"""The order of the findings: by what each adds to those above it, symptoms below their causes.

A symptom (a GPU that waits for launches, many small kernels, an exposed all-to-all) and its cause (a loop
over experts, a host that blocks, a late rank) are often one stretch of time. Causes share the time among
themselves first, symptoms what is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tracelens.findings.detectors import JOB, Detection, Detector
from tracelens.trace import Union, both

_MOST = 0.5
"""A cause that overlaps more than this share of a symptom's time explains it."""


class Candidate(NamedTuple):
    """What a detector found on all ranks.

    Attributes:
        detector: that found it.
        detections: by rank, or JOB.
        saving_ns: per step, mean of the ranks.
    """

    detector: Detector
    detections: Mapping[int, Detection]
    saving_ns: float

    @classmethod
    def of(cls, detector: Detector, detections: Mapping[int, Detection], ranks: int) -> Candidate:
        saving = {rank: detection.saving_ns for rank, detection in detections.items()}
        return cls(detector, detections, _mean(saving, ranks))

    @property
    def worst(self) -> int:
        return max(self.detections, key=lambda rank: self.detections[rank].saving_ns)


class Ranked(NamedTuple):
    """A candidate in its place.

    Attributes:
        candidate: that is ranked.
        additional_ns: per step, of its saving, what no other candidate has claimed before.
        cause: that explains most of a symptom, None where none does.
        explained: share of the symptom's time that is the cause's.
    """

    candidate: Candidate
    additional_ns: float
    cause: Candidate | None = None
    explained: float = 0.0


def ranked(candidates: Sequence[Candidate], ranks: int) -> Iterator[Ranked]:
    """The candidates by what they add, each symptom behind all causes that overlap most of its time."""
    causes = [candidate for candidate in candidates if not candidate.detector.symptom]
    symptoms = [candidate for candidate in candidates if candidate.detector.symptom]
    claimed: dict[int, Union] = {}
    waiting = [*_by_addition(causes, claimed, ranks), *_by_addition(symptoms, claimed, ranks)]
    explaining = {id(symptom): _explaining(symptom, causes) for symptom in symptoms}
    placed: set[int] = set()
    while waiting:
        free = [
            index
            for index, (candidate, _) in enumerate(waiting)
            if all(id(cause) in placed for _, cause in explaining.get(id(candidate), ()))
        ]
        candidate, additional = waiting.pop(
            max(free, key=lambda index: (waiting[index][1], waiting[index][0].saving_ns))
        )
        placed.add(id(candidate))
        explained, cause = max(
            explaining.get(id(candidate), ()), key=lambda item: item[0], default=(0.0, None)
        )
        yield Ranked(candidate, additional, cause, explained)


def _by_addition(
    candidates: Sequence[Candidate], claimed: dict[int, Union], ranks: int
) -> Iterator[tuple[Candidate, float]]:
    """Each time the candidate that adds most to what is claimed, and what it adds; then it claims its own."""
    remaining = list(candidates)
    while remaining:
        added = [_additional(candidate, claimed, ranks) for candidate in remaining]
        best = max(range(len(remaining)), key=lambda index: (added[index], remaining[index].saving_ns))
        candidate = remaining.pop(best)
        yield candidate, added[best]
        for rank, detection in candidate.detections.items():
            claimed[rank] = both(claimed.get(rank, detection.where), detection.where)


def _additional(candidate: Candidate, claimed: Mapping[int, Union], ranks: int) -> float:
    """What a candidate saves of the time that no other has claimed."""
    free = {}
    for rank, detection in candidate.detections.items():
        total, claimed_ns = detection.where.total, 0
        if total and rank in claimed:
            claimed_ns = _overlap_ns(detection.where, claimed[rank])
        free[rank] = detection.saving_ns * (1 - claimed_ns / max(total, 1))
    return _mean(free, ranks)


def _explaining(symptom: Candidate, causes: Sequence[Candidate]) -> list[tuple[float, Candidate]]:
    """The causes that overlap most of a symptom's time on all ranks, with that share."""
    total = sum(detection.where.total for detection in symptom.detections.values())
    shares = [
        (
            sum(
                _overlap_ns(detection.where, cause.detections[rank].where)
                for rank, detection in symptom.detections.items()
                if rank in cause.detections
            )
            / max(total, 1),
            cause,
        )
        for cause in causes
    ]
    return [(share, cause) for share, cause in shares if share > _MOST]


def _overlap_ns(where: Union, other: Union) -> int:
    return int(other.covered(where.start, where.end).sum())


def _mean(values: Mapping[int, float], ranks: int) -> float:
    """Mean over the ranks, those without a value as 0; what is of the job as a whole counts as it is."""
    return sum(values.values()) / (1 if JOB in values else ranks)

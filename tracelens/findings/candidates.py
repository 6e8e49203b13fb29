"""What a detector measures on all ranks, and what its remedy is worth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tracelens.findings.detectors import JOB, Detection, Detector
from tracelens.trace import Union


class Saving(NamedTuple):
    """Step time that a remedy saves by itself.

    Attributes:
        ns: mean of the ranks.
        low_ns: at least.
        high_ns: at most.
        scenario: whose replay gives it, "" if it is the detector's estimate.
        upper_bound: why it is an upper bound, "" if the replay can be trusted.
    """

    ns: float
    low_ns: float
    high_ns: float
    scenario: str = ""
    upper_bound: str = ""

    @property
    def basis(self) -> str:
        """Whether it is replayed or an upper bound."""
        return "upper bound" if self.upper_bound or not self.scenario else "replayed"

    @classmethod
    def estimated(cls, ns: float, reason: str) -> Saving:
        """A detector's estimate, which is an upper bound, and why there is no replay."""
        return cls(ns, 0.0, ns, "", reason)


class StepTime(NamedTuple):
    """How long the steps of a rank are.

    Attributes:
        dur_ns: mean of its steps.
        steps: whole ones in the recording.
    """

    dur_ns: float
    steps: int


class Candidate(NamedTuple):
    """What a detector found on all ranks.

    Attributes:
        detector: that found it.
        detections: by rank, or JOB.
        estimate_ns: what the detector expects to save, by rank, in the replayed steps.
        lost_ns: when the time is lost that it is about, by rank, in the replayed steps.
        estimated_ns: mean of the ranks.
        saving: of the replay of its scenario, or that estimate.
    """

    detector: Detector
    detections: Mapping[int, Detection]
    estimate_ns: Mapping[int, float]
    lost_ns: Mapping[int, float]
    estimated_ns: float
    saving: Saving

    @classmethod
    def of(
        cls,
        detector: Detector,
        detections: Mapping[int, Detection],
        ranks: Mapping[int, StepTime],
        base_ns: float,
        step_count: int = 1,
    ) -> Candidate:
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


def mean_of_ranks(values: Mapping[int, float], ranks: int) -> float:
    """Mean over the ranks, those without a value as 0; what is of the job as a whole counts as it is."""
    return sum(values.values()) / (1 if JOB in values else ranks)


def explaining(symptom: Candidate, causes: list[Candidate]) -> list[tuple[float, Candidate]]:
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
    return sorted((pair for pair in shares if pair[0] > MOST), key=lambda pair: -pair[0])


MOST = 0.5
"""A cause that overlaps more than this share of a symptom's time explains it."""


def overlap_ns(where: Union, other: Union) -> int:
    """How long both are at once, ns."""
    return int(other.covered(where.start, where.end).sum())

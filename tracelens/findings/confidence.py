"""How far to believe a saving: what it is, how well the graph explains the step, and what is in doubt."""

from __future__ import annotations

import numpy as np

from tracelens.analysis.completeness import doubtful_time, doubts_within
from tracelens.findings.candidates import Candidate
from tracelens.findings.detectors import JOB, Confidence, Detection
from tracelens.findings.replays import Replays
from tracelens.table import Result

LOW, MEDIUM = 0.5, 0.1
"""From such a share of its time in doubtful stretches on, a finding has at most this confidence."""


EXPLAINED = 1 / 40
"""Up to this unexplained share of the step the graph explains it; recordings of all ranks and several steps
stay within."""


def trusted(candidate: Candidate, replays: Replays) -> Detection:
    """The detection on the worst rank, with the confidence in its saving.

    An upper bound has low confidence; a replay that of the detector, high only where the graph explains the
    step.
    """
    detection = candidate.detections[candidate.worst]
    if candidate.saving.basis != "replayed":
        return detection._replace(confidence="low")
    if detection.confidence == "high" and replays.doubt > EXPLAINED:
        return detection._replace(confidence="medium")
    return detection


def doubted(detection: Detection, rank: int, doubts: Result) -> Detection:
    """A detection with less confidence where its time lies in doubtful stretches.

    Args:
        detection: on the rank, or of the JOB.
        rank: that loses most.
        doubts: of the analyzer `completeness`.
    """
    share, names = _doubtful_share(detection, rank, doubts)
    if share < MEDIUM:
        return detection
    capped: Confidence = "low" if share >= LOW or detection.confidence == "low" else "medium"
    why = f"{share:.0%} of this time is in doubt: {', '.join(names)} (see completeness)"
    return detection._replace(confidence=capped, evidence=f"{detection.evidence}; {why}")


def _doubtful_share(detection: Detection, rank: int, doubts: Result) -> tuple[float, list[str]]:
    """The share of a detection's time that is in doubt, of a job that of its worst rank, and the doubts."""
    where = detection.where
    if rank == JOB or not where.total:
        table = doubts.data.get("doubts")
        if table is None or not len(table):
            return 0.0, []
        of_rank = np.ones(len(table), dtype=bool) if rank == JOB else table.array("rank") == rank
        fraction = table.array("fraction")[of_rank]
        return float(fraction.max(initial=0.0)), sorted(set(table.texts("doubt", of_rank)))
    doubtful = doubtful_time(doubts, rank)
    share = int(doubtful.covered(where.start, where.end).sum()) / where.total
    return share, doubts_within(doubts, rank, where) if share else []

"""Findings that rest on doubtful parts of a recording are believed less."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tracelens.analysis.completeness import doubtful_time, doubts_within
from tracelens.findings.detectors import JOB, Confidence, Detection
from tracelens.table import Result

LOW, MEDIUM = 0.5, 0.1
"""From such a share of its time in doubtful stretches on, a finding has at most this confidence."""


def doubted(detections: Mapping[int, Detection], worst: int, doubts: Result) -> Detection:
    """The detection on the worst rank, with less confidence where its time lies in doubtful stretches.

    Args:
        detections: by rank, or of the JOB.
        worst: the rank that loses most.
        doubts: of the analyzer `completeness`.
    """
    detection = detections[worst]
    share, names = _doubtful_share(detection, worst, doubts)
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

"""What to fix first: detections over the analyzed ranks, ordered by what they cost."""

from tracelens.findings.detectors import RankContext

__all__ = ["RankContext"]

"""What to fix first: detections over the analyzed ranks, ordered by what they cost."""

from tracelens.findings.rank_context import RankContext

__all__ = ["RankContext"]

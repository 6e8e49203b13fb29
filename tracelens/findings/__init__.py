"""What to fix first: detections over the analyzed ranks, ordered by what they cost."""

from tracelens.findings.detectors import RankContext
from tracelens.findings.remedies import (
    Remedy,
    TracePlatform,
    add_remedy,
    joined,
    platform_of,
    remedies,
    remedy,
    without_set,
)

__all__ = [
    "RankContext",
    "Remedy",
    "TracePlatform",
    "add_remedy",
    "joined",
    "platform_of",
    "remedies",
    "remedy",
    "without_set",
]

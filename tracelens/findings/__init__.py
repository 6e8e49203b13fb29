"""What to fix first: detections over the analyzed ranks, ordered by what they cost."""

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
    detector,
    in_steps,
    step_count,
)
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
    "DETECTORS",
    "JOB",
    "Confidence",
    "Detection",
    "Detections",
    "Detector",
    "Outcome",
    "Quantity",
    "RankContext",
    "Remedy",
    "TracePlatform",
    "add_remedy",
    "detector",
    "in_steps",
    "joined",
    "platform_of",
    "remedies",
    "remedy",
    "step_count",
    "without_set",
]

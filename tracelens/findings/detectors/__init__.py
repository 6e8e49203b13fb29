"""Detectors: one module a kind of finding."""

from tracelens.findings.detectors.detector import (
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
    "detector",
]

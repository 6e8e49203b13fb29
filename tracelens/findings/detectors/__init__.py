"""Detectors: one module a kind of finding."""

from tracelens.findings.detectors.detector import DETECTORS, JOB, Detector, Found, Quantity, Signal, detector

__all__ = ["DETECTORS", "JOB", "Detector", "Found", "Quantity", "Signal", "detector"]

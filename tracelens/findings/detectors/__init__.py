"""Detectors: one module a kind of finding."""

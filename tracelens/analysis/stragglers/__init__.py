"""Stragglers: which rank the others wait for, why, and whether that is more than noise."""

from tracelens.analysis.stragglers.workload import duration

__all__ = ["duration"]

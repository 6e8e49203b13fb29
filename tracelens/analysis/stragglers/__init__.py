"""Stragglers: which rank the others wait for, why, and whether that is more than noise."""

from tracelens.analysis.stragglers.stragglers import NOISE, SIGNIFICANT, SMALL, TOO_FEW, UNTESTED

__all__ = ["NOISE", "SIGNIFICANT", "SMALL", "TOO_FEW", "UNTESTED"]

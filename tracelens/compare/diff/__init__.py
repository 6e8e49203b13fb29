"""Diff: what changed between two runs, and where the difference of their step times comes from."""

from tracelens.compare.diff.diff import TAIL, diff
from tracelens.compare.diff.noise import Interval, absolute, difference, ratio, varies

__all__ = ["TAIL", "Interval", "absolute", "diff", "difference", "ratio", "varies"]

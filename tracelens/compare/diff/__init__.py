"""Diff: what changed between two runs, and where the difference of their step times comes from."""

from tracelens.compare.diff.diff import TABLES, TAIL, diff
from tracelens.compare.diff.noise import Interval, absolute, difference, ratio, varies

__all__ = ["TABLES", "TAIL", "Interval", "absolute", "diff", "difference", "ratio", "varies"]

"""Ladder: runs that each change one thing, every rung against the one before."""

from tracelens.compare.ladder.ladder import ladder
from tracelens.compare.ladder.rungs import read

__all__ = ["ladder", "read"]

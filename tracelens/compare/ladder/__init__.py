"""Ladder: runs that each change one thing, every rung against the one before."""

"""Diff: what changed between two runs, and where the difference of their step times comes from."""

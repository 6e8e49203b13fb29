"""Diff: what changed between two runs, and where the difference of their step times comes from."""

from tracelens.compare.diff.diff import TABLES, changed_ops, diff, headline

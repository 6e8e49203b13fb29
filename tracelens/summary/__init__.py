"""Summaries: the verdict and the headline numbers of a report, read from the tables of its results."""

from tracelens.summary.run import run_summary

__all__ = ["run_summary"]

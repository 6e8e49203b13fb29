"""Summaries: the verdict and the headline numbers of a report, read from the tables of its results."""

from tracelens.summary.results import result_summary
from tracelens.summary.run import run_summary

__all__ = ["result_summary", "run_summary"]

"""Analyzers: what a run's traces say, one room a subject."""

from tracelens.analysis.analyzer import ANALYZERS, Analyzer, analyzer, in_order, with_needed
from tracelens.analysis.options import check_options, option_names

__all__ = ["ANALYZERS", "Analyzer", "analyzer", "check_options", "in_order", "option_names", "with_needed"]

"""Analyzers: what a run's traces say, one room a subject."""

from tracelens.analysis.analyzer import ANALYZERS, Analyzer, analyzer, in_order, with_needed

__all__ = ["ANALYZERS", "Analyzer", "analyzer", "in_order", "with_needed"]

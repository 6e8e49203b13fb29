"""Analyzers: what a run's traces say, one room a subject."""

from tracelens.analysis.analyzer import (
    ANALYZERS,
    SHARED,
    Analyzer,
    Shared,
    analyzer,
    in_order,
    share,
    with_required,
)
from tracelens.analysis.options import check_options, option_names

__all__ = [
    "ANALYZERS",
    "SHARED",
    "Analyzer",
    "Shared",
    "analyzer",
    "check_options",
    "in_order",
    "option_names",
    "share",
    "with_required",
]

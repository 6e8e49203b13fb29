"""Analyzers: what a run's traces say, one room a subject."""

from tracelens.analysis.analyzer import (
    ANALYZERS,
    MANY_RANKS,
    SHARED,
    Analyzer,
    Combining,
    Shared,
    analyzer,
    check_options,
    in_order,
    option_names,
    share,
    with_required,
)

__all__ = [
    "ANALYZERS",
    "MANY_RANKS",
    "SHARED",
    "Analyzer",
    "Combining",
    "Shared",
    "analyzer",
    "check_options",
    "in_order",
    "option_names",
    "share",
    "with_required",
]

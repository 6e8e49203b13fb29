"""Completeness: whether a recording can be believed, and where not."""

from tracelens.analysis.completeness.doubts import (
    COMPLETENESS,
    DOUBTS,
    affected,
    doubtful_time,
    doubts_within,
    trust,
)

__all__ = ["COMPLETENESS", "DOUBTS", "affected", "doubtful_time", "doubts_within", "trust"]

"""Columns that mean the same in every table."""

from __future__ import annotations

from tracelens.table.schema import Column

RANK = Column("rank", "int64", doc="rank in the job; 0 for a single trace that names none")

STEP = Column(
    "step",
    "category",
    doc="step that launched it, such as ProfilerStep#2; a label in brackets: launched outside the marks",
)

"""Tables: declared columns with units, results, and the operations on them."""

from tracelens.table.forest import depths, nearest, outermost, subtree_sums
from tracelens.table.groups import codes, stats, sums
from tracelens.table.result import VIEWS, Report, Result, Skip, join, result
from tracelens.table.schema import Coded, Column, Schema, Table, Unit, shortened
from tracelens.table.stack import recode, stack, used
from tracelens.table.tree import Leaves, Level, depth_first, levels

__all__ = [
    "VIEWS",
    "Coded",
    "Column",
    "Leaves",
    "Level",
    "Report",
    "Result",
    "Schema",
    "Skip",
    "Table",
    "Unit",
    "codes",
    "depth_first",
    "depths",
    "join",
    "levels",
    "nearest",
    "outermost",
    "recode",
    "result",
    "shortened",
    "stack",
    "stats",
    "subtree_sums",
    "sums",
    "used",
]

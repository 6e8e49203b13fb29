"""Tables: declared columns with units, results, and the operations on them."""

from tracelens.table.coded import Coded, Rows
from tracelens.table.columns import RANK, STEP
from tracelens.table.forest import depths, nearest, outermost, subtree_sums
from tracelens.table.groups import codes, stats, sums
from tracelens.table.result import VIEWS, Report, Result, Skip, join, result
from tracelens.table.schema import Column, Pivot, Schema, Table, shortened
from tracelens.table.student import t_quantile, t_tail
from tracelens.table.summary import Summary, Tile
from tracelens.table.tree import Leaves, Level, depth_first, levels

__all__ = [
    "RANK",
    "STEP",
    "VIEWS",
    "Coded",
    "Column",
    "Leaves",
    "Level",
    "Pivot",
    "Report",
    "Result",
    "Rows",
    "Schema",
    "Skip",
    "Summary",
    "Table",
    "Tile",
    "codes",
    "depth_first",
    "depths",
    "join",
    "levels",
    "nearest",
    "outermost",
    "result",
    "shortened",
    "stats",
    "subtree_sums",
    "sums",
    "t_quantile",
    "t_tail",
]

"""Figures: what a result looks like, as plain plotly dictionaries."""

from tracelens.rendering.figures.base import chart, needs, stacked_bars
from tracelens.rendering.figures.colors import colors as colors_of
from tracelens.rendering.figures.figure import Figure, drawn, figure
from tracelens.rendering.figures.ranks import rank_bars

__all__ = ["Figure", "chart", "colors_of", "drawn", "figure", "needs", "rank_bars", "stacked_bars"]

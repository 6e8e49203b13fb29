"""Figures: what a result looks like, as plain plotly dictionaries."""

from tracelens.rendering.figures.colors import colors as colors_of
from tracelens.rendering.figures.figure import (
    FIGURES,
    Figure,
    chart,
    drawn,
    figure,
    figures,
    needs,
    rank_bars,
    stacked_bars,
)

__all__ = [
    "FIGURES",
    "Figure",
    "chart",
    "colors_of",
    "drawn",
    "figure",
    "figures",
    "needs",
    "rank_bars",
    "stacked_bars",
]

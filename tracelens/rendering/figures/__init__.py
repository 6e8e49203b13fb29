"""Figures: what a result looks like, as plain plotly dictionaries."""

from tracelens.rendering.figures.colors import colors as colors_of
from tracelens.rendering.figures.figure import Figure, drawn

__all__ = ["Figure", "colors_of", "drawn"]

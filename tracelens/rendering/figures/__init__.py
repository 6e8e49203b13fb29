"""Figures: what a result looks like, as plain plotly dictionaries."""

from tracelens.rendering.figures.colors import colors
from tracelens.rendering.figures.figure import Figure, drawn

__all__ = ["Figure", "colors", "drawn"]

"""Figures: what a result looks like, as plain plotly dictionaries."""

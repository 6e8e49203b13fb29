"""Figures of projections."""

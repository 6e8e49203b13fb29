"""Whole MoE layers as scripts: the sequence of their op calls."""

from tracelens.reproducers.layers.sequences import sequences

__all__ = ["sequences"]

"""Whole MoE layers as scripts: the sequence of their op calls."""

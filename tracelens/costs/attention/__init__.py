"""Costs of attention, forward and backward, in PyTorch and in libraries."""

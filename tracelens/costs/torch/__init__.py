"""Costs of ATen ops that move or map elements."""

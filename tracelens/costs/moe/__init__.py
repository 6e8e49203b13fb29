"""Costs of Mixture-of-Experts ops."""

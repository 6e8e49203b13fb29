"""Costs of ops that libraries bring: Transformer Engine, Triton, collectives."""

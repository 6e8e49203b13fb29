"""Costs of GEMMs: dense, fused with an epilogue, grouped."""

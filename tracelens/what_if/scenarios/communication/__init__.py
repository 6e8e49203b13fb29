"""Collectives that are faster or overlapped."""

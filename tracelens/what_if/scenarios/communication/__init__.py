"""Collectives that are faster or overlapped, and ranks that wait for each other."""

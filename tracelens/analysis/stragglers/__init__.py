"""Stragglers: which rank the others wait for, why, and whether that is more than noise."""

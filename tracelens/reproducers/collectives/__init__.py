"""Collectives as scripts for several ranks."""

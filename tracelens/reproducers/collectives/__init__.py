"""Collectives as scripts for several ranks."""

from tracelens.reproducers.collectives.collectives import collectives

__all__ = ["collectives"]

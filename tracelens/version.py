"""The version of tracelens."""

__version__ = "0.1.0"

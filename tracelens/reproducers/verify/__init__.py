"""Verify: run the scripts of a folder and compare their times with the trace."""

from tracelens.reproducers.verify.verify import failed, verify

__all__ = ["failed", "verify"]

"""Verify: run the scripts of a folder and compare their times with the trace."""

from tracelens.reproducers.verify.verify import TABLES, failed, verify

__all__ = ["TABLES", "failed", "verify"]

"""Verify: run the scripts of a folder and compare their times with the trace."""

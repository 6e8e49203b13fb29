"""Decoded columns to the tables of a `Trace`."""

from tracelens.read.build.build import Dialect, build

__all__ = ["Dialect", "build"]

"""Decoded columns to the tables of a `Trace`."""

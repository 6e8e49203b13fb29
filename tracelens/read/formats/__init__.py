"""Trace formats: one module each, found by looking at the content."""

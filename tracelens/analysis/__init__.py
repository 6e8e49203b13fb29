"""Analyzers: what a run's traces say, one room a subject."""

"""Figures of what the analyzers say about one run."""

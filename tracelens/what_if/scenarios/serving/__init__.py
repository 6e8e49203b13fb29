"""Scenarios of serving engines."""

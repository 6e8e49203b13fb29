"""Opportunities by subject: when one applies, what to change in the run's graph, what to do about it.

A module is written as a plugin would be, with what `findings` and `what_if` export, and registers itself.
"""

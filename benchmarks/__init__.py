"""Benchmarks, run by `make bench`; nothing here is a test and nothing is imported by the package."""

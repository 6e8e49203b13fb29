"""The name under which tracelens is distributed, and its version."""

DISTRIBUTION = "tracelens-moe"
__version__ = "0.1.0"

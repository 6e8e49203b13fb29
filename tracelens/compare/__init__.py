"""Two runs: what changed, and whether it may."""

"""`tracelens workload`: run the bundled MoE workload and record traces of it."""

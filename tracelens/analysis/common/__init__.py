"""What several rooms of the analysis need: CPU-only traces, devices, recomputed ops, time of op calls."""

"""The host: idle GPU time and what the host did meanwhile, launches, blocking calls."""

"""MoE layers: expert loops, imbalance, permutation."""

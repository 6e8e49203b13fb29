"""MoE layers: their passes and stages, expert balance, host synchronisation inside them."""

"""Costs of neural-network layers: norms, softmax, losses, pooling, convolution."""

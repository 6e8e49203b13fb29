"""Inputs of reproducer scripts: recorded arguments, and tensors made to fit them."""

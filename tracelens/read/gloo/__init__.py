"""Gloo: collectives of CPU process groups, from the records of its ops."""

"""Fuse: the traces of all ranks in one Perfetto file."""

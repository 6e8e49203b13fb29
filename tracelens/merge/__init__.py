"""Fuse: the traces of all ranks in one Perfetto file."""

from tracelens.merge.merge import check_suffix, fuse, read_ranks, with_ranks

__all__ = ["check_suffix", "fuse", "read_ranks", "with_ranks"]

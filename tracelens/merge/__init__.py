"""Fuse: the traces of all ranks in one Perfetto file."""

from tracelens.merge.merge import fuse
from tracelens.merge.write import check_suffix

__all__ = ["check_suffix", "fuse"]

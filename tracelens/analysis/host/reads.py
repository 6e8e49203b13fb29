"""Where a program without a GPU reads values: with one, the host would wait for it there."""

from __future__ import annotations

import re

import numpy as np

from tracelens.arrays import Bool, lookup
from tracelens.table import nearest
from tracelens.trace import Trace, matching

_READS = re.compile(r"^aten::(?:item|_local_scalar_dense|is_nonzero|nonzero)$")
# All that is recorded of .tolist() where there is nothing to copy; ops call it on their way, programs hardly.
_LISTS = re.compile(r"^aten::resolve_neg$")
_OPS = re.compile(r"^aten::")


def reads(trace: Trace) -> Bool:
    """The ops on which a program's course depends; what an op's work reads on its way is that op's affair."""
    events = trace.arrays

    def named(pattern: re.Pattern[str]) -> Bool:
        return matching(events.names, pattern)[events.name]

    works = np.zeros(len(events.start), dtype=bool)
    works[trace.work.event] = True
    around = nearest(events.parent, events.depth, works)
    is_read: Bool = named(_READS) & (lookup(around, events.parent, -1) < 0)
    is_read |= named(_LISTS) & ~lookup(named(_OPS), events.parent, False)
    return is_read & events.where("op")

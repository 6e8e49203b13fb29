"""How many processes share the work, and whether one of them can be a copy of this one."""

from __future__ import annotations

import os
import re

from tracelens.errors import TracelensError

_JOBS = re.compile(r"0*[1-9][0-9]{0,2}", re.ASCII)


def jobs() -> int:
    """Number of processes that decode: TRACELENS_JOBS, else the cores this process may use, at most 8."""
    configured = os.environ.get("TRACELENS_JOBS", "")
    if configured:
        if not _JOBS.fullmatch(configured):
            raise TracelensError(f"TRACELENS_JOBS={configured!r}: give a number of processes, 1 to 999")
        return int(configured)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, 8)


def can_copy() -> bool:
    """Whether this process can be copied, and there is a core for the copy."""
    return jobs() > 1 and hasattr(os, "fork")

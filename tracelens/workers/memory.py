"""What a process does with memory that it has freed, where glibc manages it."""

from __future__ import annotations

import ctypes
from contextlib import suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Parameters of mallopt."""


def give_back() -> None:
    """Give freed memory back to the system, which would stay with the process."""
    with suppress(OSError, AttributeError):  # other C libraries do not say how
        ctypes.CDLL(None).malloc_trim(0)


def keep_freed() -> None:
    """Keep freed arrays for the next ones, since the system takes its time for each new page.

    glibc would give back whatever is freed at the end of the heap, down to 128 kB at first; and of what a
    thread has freed, such as one that read a trace, the others would get nothing. For processes that are all
    ours, before they start a thread.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, 4 << 20)
        mallopt(_TRIM_THRESHOLD, 8 << 20)
        mallopt(_ARENA_MAX, 1)

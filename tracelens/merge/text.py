"""Pieces of trace JSON as text: exact times, and the metadata that names processes and threads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from tracelens.arrays import Int

_THOUSANDTHS = [f".{number:03d}" for number in range(1000)]


def quote(text: str) -> str:
    """A text as a JSON string; lone surrogates, which no UTF-8 holds, become U+FFFD."""
    return orjson.dumps(text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")).decode()


def microseconds(ns: Int) -> list[str]:
    """Non-negative nanoseconds as microseconds with three decimals, exactly.

    >>> microseconds(np.array([1234567]))
    ['1234.567']
    """
    us_part, ns_part = np.divmod(ns, 1000)
    return [f"{us}{_THOUSANDTHS[part]}" for us, part in zip(us_part.tolist(), ns_part.tolist(), strict=True)]


def process(pid: int, name: str, labels: str = "") -> list[str]:
    """Metadata events that name a process; processes are shown in order of `pid`."""
    events = [_metadata("process_name", pid, pid, {"name": name})]
    if labels:
        events.append(_metadata("process_labels", pid, pid, {"labels": labels}))
    return [*events, _metadata("process_sort_index", pid, pid, {"sort_index": pid})]


def thread(pid: int, tid: int, name: str) -> list[str]:
    """Metadata events that name a thread; threads are shown in order of `tid`."""
    return [
        _metadata("thread_name", pid, tid, {"name": name}),
        _metadata("thread_sort_index", pid, tid, {"sort_index": tid}),
    ]


def _metadata(name: str, pid: int, tid: int, args: Mapping[str, Any]) -> str:
    # The same order of keys as in all other events, by which readers cut the file into pieces.
    return orjson.dumps({"ph": "M", "name": name, "pid": pid, "tid": tid, "ts": 0, "args": args}).decode()

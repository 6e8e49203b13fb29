"""The work of a CPU-only trace: the host's ops and gloo's communication, in the form of GPU work."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tracelens.arrays import Int, lookup
from tracelens.read.gloo import Arguments, HostEvents, communication, records
from tracelens.read.json import SEPARATOR, CollectiveRow, Encoded
from tracelens.trace import EVENT_KINDS, GPU_SIGNS, Calls, Stack, host_work

if TYPE_CHECKING:
    from tracelens.read.build.rows import EventRows


NCCL = "nccl:"
"""Begins the names of annotations that only GPUs' communication leaves on the host."""

# Other calls, which ask for a GPU's properties or wait for it, the profiler itself makes where there is one.
_GIVES_WORK = re.compile("launch|memcpy|memset|enqueue|append", re.IGNORECASE)

RECORD = "record_param_comms"
"""The op inside of one that starts communication, with the profiler's record of it, where there is one."""


class HostSide:
    """The work of the host.

    Attributes:
        link: columns of the links table, without the forward ops.
    """

    def __init__(self, events: HostEvents, stack: Stack, arguments: Arguments, source: Int) -> None:
        self._events, self._arguments, self._source = events, arguments, source
        self._talk = talk = communication(events, arguments)
        within, called = np.zeros(len(source), dtype=bool), np.zeros(len(source), dtype=bool)
        within[talk.row[talk.aside]] = True
        recorded = _recorded(events, stack, talk.op)
        called[np.concatenate((talk.op[talk.op >= 0], recorded[recorded >= 0]))] = True
        ops = host_work(stack, list(events.names), within, called)
        work, op = np.concatenate((ops, talk.row)), np.concatenate((ops, recorded))
        order = np.argsort(work)
        self.link = {
            "kernel_id": work[order],
            "launch_id": np.full(len(work), -1, dtype=np.int64),
            "op_id": op[order],
        }

    def collectives(self, info: Mapping[str, Any]) -> list[CollectiveRow]:
        """The collectives that ran through gloo; `info` is the header's distributedInfo."""
        return records(self._events, self._arguments, self._talk, self._source, info)


def _recorded(events: HostEvents, stack: Stack, op: Int) -> Int:
    """The record inside of each op, the op itself where it has none."""
    name = [code for code, text in enumerate(events.names) if text == RECORD]
    inside = np.flatnonzero(events.is_op & np.isin(events.name, name))
    record_of = np.arange(len(events.start))
    record_of[stack.parent[inside]] = inside
    return lookup(record_of, op, -1)


def host_side(
    table: Encoded, rows: EventRows, kind: Int, location: tuple[Int, Int, Int], calls: Calls
) -> HostSide | None:
    """The work of the host in a CPU-only trace, None for any other.

    Args:
        table: as decoded.
        rows: its events.
        kind: code into EVENT_KINDS of each.
        location: number of the thread, thread id and end of each.
        calls: the same events as calls.
    """
    if not calls.is_op.any() or np.isin(kind, [EVENT_KINDS.index(name) for name in GPU_SIGNS]).any():
        return None
    launched = np.unique(rows.table.name[kind == EVENT_KINDS.index("launch")])
    if any(_GIVES_WORK.search(table.names[code]) for code in launched):
        return None
    if any(name.startswith(NCCL) for name in table.names):
        return None
    thread, tid, end = location
    is_annotation = kind == EVENT_KINDS.index("annotation")
    events = HostEvents(
        calls.is_op, is_annotation, rows.table.name, table.names, thread, tid, calls.start, end
    )
    stack = Stack(calls.is_op, rows.table.name, calls.parent, calls.depth)
    return HostSide(events, stack, Arguments(_texts(table, rows, events)), rows.source)


def _texts(table: Encoded, rows: EventRows, events: HostEvents) -> dict[int, tuple[str, str, str]]:
    """Dims, types and values of what has to do with communication."""
    is_collective = np.array(
        ["c10d::" in name or name.startswith("gloo:") for name in table.names], dtype=bool
    )
    op_row = np.full(len(table.columns.phase), -1, dtype=np.int64)
    op_row[table.ops.event] = np.arange(len(table.ops.event))
    rows_wanted = np.flatnonzero(is_collective[events.name])
    rows_wanted = rows_wanted[op_row[rows.source[rows_wanted]] >= 0]
    blobs = table.ops.blob[op_row[rows.source[rows_wanted]]]
    texts = {}
    for row, blob in zip(rows_wanted.tolist(), blobs.tolist(), strict=True):
        dims, types, _, values = table.blobs[blob].decode("utf-8", "replace").split(SEPARATOR.decode())
        texts[row] = (dims, types, values)
    return texts

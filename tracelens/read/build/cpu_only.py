"""The work of a trace without a GPU: the host's ops and gloo's communication, in the form of GPU work."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tracelens.arrays import Int
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
"""The op inside of one that asks for communication, with the profiler's record of it, where there is one."""


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
        asked = _recorded(events, stack, talk.op)
        called[np.concatenate((talk.op[talk.op >= 0], asked[asked >= 0]))] = True
        ops = host_work(stack, list(events.names), within, called)
        work, op = np.concatenate((ops, talk.row)), np.concatenate((ops, asked))
        order = np.argsort(work)
        self.link = {
            "kernel_id": work[order],
            "launch_id": np.full(len(work), -1, dtype=np.int64),
            "op_id": op[order],
        }

    def collectives(self, info: Mapping[str, Any]) -> list[CollectiveRow]:
        """The collectives that gloo was asked for; `info` is the header's distributedInfo."""
        return records(self._events, self._arguments, self._talk, self._source, info)


def _recorded(events: HostEvents, stack: Stack, op: Int) -> Int:
    """The record inside of each op, the op itself where it has none."""
    name = [code for code, text in enumerate(events.names) if text == RECORD]
    inside = np.flatnonzero(events.is_op & np.isin(events.name, name))
    found = np.arange(len(events.start))
    found[stack.parent[inside]] = inside
    return np.where(op >= 0, found[op], -1)


def host_side(
    table: Encoded, rows: EventRows, kind: Int, place: tuple[Int, Int, Int], calls: Calls
) -> HostSide | None:
    """The work of the host in a trace of which nothing is a GPU's, None for any other.

    Args:
        table: as decoded.
        rows: its events.
        kind: code into EVENT_KINDS of each.
        place: number of the thread, thread id and end of each.
        calls: the same events as calls.
    """
    if not calls.is_op.any() or np.isin(kind, [EVENT_KINDS.index(name) for name in GPU_SIGNS]).any():
        return None
    launched = np.unique(rows.table.name[kind == EVENT_KINDS.index("launch")])
    if any(_GIVES_WORK.search(table.names[code]) for code in launched):
        return None
    if any(name.startswith(NCCL) for name in table.names):
        return None
    thread, tid, end = place
    is_annotation = kind == EVENT_KINDS.index("annotation")
    events = HostEvents(
        calls.is_op, is_annotation, rows.table.name, table.names, thread, tid, calls.start, end
    )
    stack = Stack(calls.is_op, rows.table.name, calls.parent, calls.depth)
    return HostSide(events, stack, Arguments(_texts(table, rows, events)), rows.source)


def _texts(table: Encoded, rows: EventRows, events: HostEvents) -> dict[int, tuple[str, str, str]]:
    """Dims, types and values of what has to do with communication."""
    wanted = np.array(["c10d::" in name or name.startswith("gloo:") for name in table.names], dtype=bool)
    at = np.full(len(table.columns.phase), -1, dtype=np.int64)
    at[table.ops.event] = np.arange(len(table.ops.event))
    chosen = np.flatnonzero(wanted[events.name])
    chosen = chosen[at[rows.source[chosen]] >= 0]
    blobs = table.ops.blob[at[rows.source[chosen]]]
    found = {}
    for row, blob in zip(chosen.tolist(), blobs.tolist(), strict=True):
        dims, types, _, values = table.blobs[blob].decode("utf-8", "replace").split(SEPARATOR.decode())
        found[row] = (dims, types, values)
    return found

"""Records of the collectives that graphs replay, copied from where the graph was captured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tracelens.arrays import Int, lookup
from tracelens.table import Coded, Table
from tracelens.trace.tables import COLLECTIVES
from tracelens.trace.trace import Trace

_SIZES = ("in_bytes", "out_bytes")
_SPLITS = ("in_split", "out_split")


class Replayed(NamedTuple):
    """The attributed work of a replay.

    Attributes:
        template: where the graph was captured.
        event: rows of the template's events that are copied.
        first: row of the first copy.
        op: of each piece of work, the position of its op among the copies, -1 for none.
        work: event row of each piece.
        has_arguments: whether sizes hold for this replay.
    """

    template: Trace
    event: Int
    first: int
    op: Int
    work: Int
    has_arguments: bool


def collectives(trace: Trace, start: Int, replays: Sequence[Replayed]) -> Table:
    """The collectives of the trace and of its replays, each with its kernel, in order.

    Args:
        trace: with the graph launches.
        start: of all events, the copies among them, ns.
        replays: of its graphs.
    """
    own = trace.tables["collectives"]
    copied = [_copied(replay, np.unique(own.array("kernel_id"))) for replay in replays]
    if not any(map(len, copied)):
        return own
    table = COLLECTIVES.concat([part.columns for part in (own, *copied)])
    event = table.array("event_id")
    table = table.take(np.lexsort((event, start[event])))
    return Table(
        COLLECTIVES, {**table.columns, "order": _positions(table.coded("group").codes.astype(np.int64))}
    )


def _copied(replay: Replayed, recorded: Int) -> Table:
    """The records of a replay; a collective of several kernels has its last one, as where it is recorded."""
    records = replay.template.tables["collectives"]
    position = np.full(len(replay.template.arrays.start), -1, dtype=np.int64)
    position[replay.event] = np.arange(len(replay.event))
    kernel = np.full(len(replay.event) + 1, -1, dtype=np.int64)
    kernel[replay.op] = replay.work  # of work without an op behind the end
    at = lookup(position, records.array("event_id"), -1)
    of_record = np.where(at >= 0, kernel[at], -1)
    kept = (of_record >= 0) & ~np.isin(of_record, recorded)
    rows = records.take(kept)
    columns = {**rows.columns, "event_id": at[kept] + replay.first, "kernel_id": of_record[kept]}
    if not replay.has_arguments:
        columns |= {name: np.full(len(rows), -1) for name in _SIZES}
        columns |= {name: Coded.of([""] * len(rows)) for name in _SPLITS}
    return Table(COLLECTIVES, columns)


def _positions(group: Int) -> Int:
    """Position of each row among those of its group."""
    by_group = np.argsort(group, kind="stable")
    ordered = group[by_group]
    first = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])) if len(group) else by_group
    count = np.diff(np.append(first, len(group)))
    positions = np.empty(len(group), dtype=np.int64)
    positions[by_group] = np.arange(len(group)) - np.repeat(first, count)
    return positions

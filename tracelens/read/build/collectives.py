"""The collectives table: what the profiler recorded about each collective, joined to its kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from tracelens.arrays import Int
from tracelens.dtypes import element_bytes
from tracelens.limits import LARGEST_COUNT
from tracelens.read.json import OUT_OF_RANGE, CollectiveRow, group_of, listed_ranks, plain_text, summable
from tracelens.table import Coded, Table
from tracelens.trace import COLLECTIVES

POINT_TO_POINT = ("send", "recv")
_COALESCED = "nccl:coalesced"


def collectives_table(
    records: list[CollectiveRow], source: Int, link: dict[str, Int], events: Table, repaired: Counter[str]
) -> Table:
    """Build it.

    Args:
        records: as decoded, `event` being the position in the file.
        source: position in the file of each row of the events table.
        link: columns of the links table.
        events: the events table.
        repaired: counts what had to be corrected.

    A CPU record and the kernel that repeats its metadata become one row. Sends and receives that were
    batched share one kernel, launched when the batch ends.
    """
    start = events.array("ts_ns")
    row_of = {source_row: row for row, source_row in enumerate(source.tolist())} if records else {}
    kernel_of_op = (
        dict(zip(link["op_id"].tolist(), link["kernel_id"].tolist(), strict=True)) if records else {}
    )
    op_of_kernel = (
        dict(zip(link["kernel_id"].tolist(), link["op_id"].tolist(), strict=True)) if records else {}
    )
    known = [(row_of[record.event], record) for record in records if record.event in row_of]
    cpu = {row for row, _ in known if row not in op_of_kernel}
    rows = [(row, record) for row, record in known if op_of_kernel.get(row, -1) not in cpu]
    rows.sort(key=lambda item: (int(start[item[0]]), item[0]))
    seen: dict[bytes, int] = {}
    peers = cache(listed_ranks)
    read = cache(plain_text)  # thousands of records share a few texts, and one of them may be long
    data: dict[str, list[Any]] = {column.name: [] for column in COLLECTIVES.columns}
    for row, record in rows:
        order = seen[record.group] = seen.get(record.group, -1) + 1
        width = element_bytes(read(record.dtype))
        ranks, size, wrong = group_of(read(record.ranks), record.size)
        if wrong:
            repaired[wrong] += 1
        values = {
            "event_id": row,
            "kernel_id": row if row in op_of_kernel else kernel_of_op.get(row, -1),
            "collective": record.collective,
            "group": read(record.group),
            "group_description": read(record.description),
            "group_ranks": ranks,
            "group_size": size,
            "dtype": read(record.dtype),
            "in_bytes": _message_bytes(record.in_elements, width),
            "out_bytes": _message_bytes(record.out_elements, width),
            "in_split": read(record.in_split),
            "out_split": read(record.out_split),
            "order": order,
            "peer": _peer(record, peers(ranks)) if record.collective in POINT_TO_POINT else -1,
        }
        for name, value in values.items():
            data[name].append(value)
    data["kernel_id"] = _batched(data, link, events)
    return COLLECTIVES.table(_columns(data, repaired))


def _peer(record: CollectiveRow, ranks: tuple[int, ...]) -> int:
    """The rank at the other end of a send or receive; -1 where it is not recorded or cannot be.

    Args:
        record: as decoded.
        ranks: of the process group, empty where they are not recorded whole.
    """
    if record.peer >= 0:
        return record.peer if not ranks or record.peer in ranks else -1
    return ranks[record.peer_in_group] if 0 <= record.peer_in_group < len(ranks) else -1


def _columns(data: Mapping[str, list[Any]], repaired: Counter[str]) -> dict[str, Any]:
    """The columns as arrays; message sizes that no sum could hold are left out."""
    numbers = {column.name for column in COLLECTIVES.columns if column.dtype == "int64"}
    columns: dict[str, Any] = {
        name: np.array(values, dtype=np.int64) if name in numbers else values for name, values in data.items()
    }
    for name in ("in_bytes", "out_bytes"):
        absurd = ~summable(columns[name])
        if absurd.any():
            repaired[OUT_OF_RANGE] += int(absurd.sum())
            columns[name] = np.where(absurd, -1, columns[name])
    return columns


def _message_bytes(elements: int, width: int) -> int:
    """Size of a message; -1 where it is not known or cannot be."""
    size = elements * width
    return size if width > 0 <= elements and size <= LARGEST_COUNT else -1


def _batched(data: Mapping[str, list[Any]], link: Mapping[str, Int], events: Table) -> list[int]:
    """The kernel of each record, with those of batched sends and receives filled in.

    torch.distributed closes a batch with a region of its own, in which the kernel is launched; the batch is
    what was recorded on that thread since the region before.
    """
    kernels: list[int] = list(data["kernel_id"])
    names: Coded = events.columns["name"]
    kind = data["collective"]
    loose = [record for record, kernel in enumerate(kernels) if kernel < 0 and kind[record] in POINT_TO_POINT]
    if not loose or _COALESCED not in names.values:
        return kernels
    start, dur, tid = (events.array(name) for name in ("ts_ns", "dur_ns", "tid"))
    named = names.codes == list(names.values).index(_COALESCED)
    region = np.flatnonzero(named & (events.array("stream") < 0))
    launched = np.flatnonzero(link["launch_id"] >= 0)
    call = link["launch_id"][launched]
    loose_of: dict[int, list[int]] = {}
    for record in loose:
        loose_of.setdefault(int(tid[data["event_id"][record]]), []).append(record)
    for thread, records_of_thread in loose_of.items():
        regions = region[tid[region] == thread]
        regions = regions[np.argsort(start[regions], kind="stable")]
        end = start[regions] + dur[regions]
        launches = launched[tid[call] == thread]
        when = start[link["launch_id"][launches]]
        by_time = np.argsort(when, kind="stable")
        times = when[by_time]
        for record in records_of_thread:
            index = int(np.searchsorted(end, start[data["event_id"][record]]))
            if index == len(regions):
                continue
            low, high = np.searchsorted(times, (start[regions[index]], end[index])).tolist()
            if low < high:
                kernels[record] = int(link["kernel_id"][launches[by_time[low:high].min()]])
    return kernels

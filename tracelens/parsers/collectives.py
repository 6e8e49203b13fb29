"""The collectives table: what the profiler recorded about each collective, joined to its kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracelens.parsers.columns import CollectiveRow, plain_text
from tracelens.schema import Coded, Table
from tracelens.trace.tables import COLLECTIVES

Int = NDArray[np.int64]

DTYPE_BYTES = {
    "byte": 1, "char": 1, "bool": 1, "int8": 1, "uint8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "half": 2, "float16": 2, "bfloat16": 2, "short": 2,
    "int16": 2, "int": 4, "int32": 4, "float": 4, "float32": 4, "long": 8, "int64": 8, "double": 8,
    "float64": 8,
}  # fmt: skip
"""Bytes of an element by the names that profilers use (`c10::` and case aside)."""


POINT_TO_POINT = ("send", "recv")
_COALESCED = "nccl:coalesced"


def collectives_table(
    records: list[CollectiveRow], source: Int, link: dict[str, Int], events: Table
) -> Table:
    """Build it.

    Args:
        records: as decoded, `event` being the position in the file.
        source: position in the file of each row of the events table.
        link: columns of the links table.
        events: the events table.

    A CPU record and the kernel that repeats its metadata become one row. Sends and receives that were
    batched share one kernel, launched when the batch ends.
    """
    start = events.array("ts_ns")
    row_of = {place: row for row, place in enumerate(source.tolist())} if records else {}
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
    data: dict[str, list[Any]] = {column.name: [] for column in COLLECTIVES.columns}
    for row, record in rows:
        order = seen[record.group] = seen.get(record.group, -1) + 1
        width = DTYPE_BYTES.get(plain_text(record.dtype).lower().removeprefix("c10::"), -1)
        values = {
            "event_id": row,
            "kernel_id": row if row in op_of_kernel else kernel_of_op.get(row, -1),
            "collective": record.collective,
            "group": plain_text(record.group),
            "group_description": plain_text(record.description),
            "group_ranks": plain_text(record.ranks),
            "group_size": record.size,
            "dtype": plain_text(record.dtype),
            "in_bytes": record.in_elements * width if width > 0 <= record.in_elements else -1,
            "out_bytes": record.out_elements * width if width > 0 <= record.out_elements else -1,
            "in_split": plain_text(record.in_split),
            "out_split": plain_text(record.out_split),
            "order": order,
            "peer": record.peer,
        }
        for name, value in values.items():
            data[name].append(value)
    data["kernel_id"] = _batched(data, link, events)
    integer = {column.name for column in COLLECTIVES.columns if column.dtype == "int64"}
    return COLLECTIVES.table(
        {
            name: np.array(values, dtype=np.int64) if name in integer else values
            for name, values in data.items()
        }
    )


def _batched(data: Mapping[str, list[Any]], link: Mapping[str, Int], events: Table) -> list[int]:
    """The kernel of each record, with those of batched sends and receives filled in.

    torch.distributed closes a batch with a region of its own, in which the kernel is launched; the batch is
    what was recorded on that thread since the region before.
    """
    kernels: list[int] = list(data["kernel_id"])
    names: Coded = events.columns["name"]
    what = data["collective"]
    loose = [place for place, kernel in enumerate(kernels) if kernel < 0 and what[place] in POINT_TO_POINT]
    if not loose or _COALESCED not in names.values:
        return kernels
    start, dur, tid = (events.array(name) for name in ("ts_ns", "dur_ns", "tid"))
    named = names.codes == list(names.values).index(_COALESCED)
    region = np.flatnonzero(named & (events.array("stream") < 0))
    launched = np.flatnonzero(link["launch_id"] >= 0)
    call = link["launch_id"][launched]
    for thread in np.unique(tid[region]).tolist():
        mine = region[tid[region] == thread]
        mine = mine[np.argsort(start[mine], kind="stable")]
        end = start[mine] + dur[mine]
        here = launched[tid[call] == thread]
        when = start[link["launch_id"][here]]
        for place in loose:
            row = data["event_id"][place]
            at = int(np.searchsorted(end, start[row]))
            if tid[row] != thread or at == len(mine):
                continue
            inside = here[(when >= start[mine[at]]) & (when < end[at])]
            kernels[place] = int(link["kernel_id"][inside[0]]) if len(inside) else -1
    return kernels
